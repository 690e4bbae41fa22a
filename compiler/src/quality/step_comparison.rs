//! Text generator quality: both forms read sample texts and are compared step by step on the way to the fp32 form's
//! output.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{
    PORTUGUESE, SENTENCES,
    chrf::Chrf,
    pairs::{PairFigures, unfit},
    samples::{Pairs, Texts},
    wait,
};
use crate::{
    files::io::read,
    plan::{
        opened_model::{DECODER, ENCODER},
        progress::Progress,
    },
    quality::cost::Comparison,
};
use kivu::{
    Error, Result,
    backend::{
        Deadline,
        routing::Route,
        seq2seq::{Decoder, Seq2SeqBackend, SourceBatch},
    },
    onnx::{OnnxSeq2Seq, Parallelism, Runtime},
    pipeline::{
        generation::{GenerationOptions, SourceInfo, generate},
        seq2seq::{
            Decoding, Languages, RequestedLanguages, Seq2SeqOptions, Seq2SeqParts, Seq2SeqPipeline,
            Seq2SeqSettings, shortlist::Shortlist,
        },
    },
    repository::{bundle::TOKENIZER, manifest::Quality},
    tokenizer::Tokenizer,
};

/// Maximum text size in bytes, to select sentences rather than paragraphs.
const MAX_TEXT_BYTES: usize = 260;
const MAX_TEXTS: usize = 100;
const MIN_TEXTS: usize = 20;
/// fp32 weight size, in bytes, above which the number of texts decreases in proportion.
const MAX_WEIGHT_BYTES: u64 = 200_000_000;
/// Maximum number of generated tokens.
const MAX_NEW_TOKENS: usize = 96;
/// Maximum number of generated tokens for a text with a reference, which may be long.
const MAX_REFERENCE_TOKENS: usize = 256;
/// Maximum number of generated tokens if there is no fp32 form to compare with.
const MAX_CHECKED_TOKENS: usize = 4;
/// Unknown token, which models with a shortlist never generate.
const UNKNOWN: u32 = 1;
/// Timeout per text.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Generates texts with both forms in a build.
pub fn measure(
    pair: &Pair,
    own: Option<&Texts>,
    bytes: [u64; 2],
    progress: &dyn Progress,
) -> Result<(Quality, Comparison)> {
    let own: Option<Vec<&str>> = own.map(|texts| texts.lines().collect());
    let languages = &pair.generator.pipeline.settings().languages;
    let texts = own.unwrap_or_else(|| texts(languages, bytes[0]).collect());
    let totals = pair.totals(&texts, progress)?;
    // Both forms run at the same time on half the CPUs each, one text at a time.
    Ok((
        totals.quality(texts.len()),
        Comparison::new(bytes, totals.times, texts.len()),
    ))
}

/// Quality of an opened model's texts against another form's, and the number of texts.
pub fn quality_of(
    [reference, quantized]: [&Seq2SeqPipeline; 2],
    own: Option<&Texts>,
    progress: &dyn Progress,
) -> Result<Quality> {
    let generator = Generator::new(quantized);
    let forms = [local(reference)?, local(quantized)?];
    let own: Option<Vec<&str>> = own.map(|texts| texts.lines().collect());
    let texts = own.unwrap_or_else(|| texts(&quantized.settings().languages, 0).collect());
    Ok(Pair { generator, forms }
        .totals(&texts, progress)?
        .quality(texts.len()))
}

/// A generator's results on texts with references.
pub fn references(
    pipeline: &Seq2SeqPipeline,
    pairs: &Pairs,
    progress: &dyn Progress,
) -> Result<PairFigures> {
    Generator::new(pipeline).references(&local(pipeline)?, pairs, progress)
}

/// The languages between which sample texts are translated.
pub fn languages(pipeline: &Seq2SeqPipeline) -> Option<String> {
    let Seq2SeqOptions { source, target, .. } = options(pipeline, MAX_NEW_TOKENS);
    source
        .zip(target)
        .map(|(source, target)| format!("{source} to {target}"))
}

/// The local form of a model; refuses one on the fleet.
fn local(pipeline: &Seq2SeqPipeline) -> Result<Form> {
    pipeline.local().cloned().ok_or_else(|| {
        Error::config("expected a model in this process, but found one on the fleet")
            .with_hint("set its policy to `local`")
    })
}

/// Generates a few tokens with the bundle's graphs, to check that they run. Returns the model.
pub fn check(
    runtime: Runtime,
    folder: &Path,
    settings: &Seq2SeqSettings,
) -> Result<Seq2SeqPipeline> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let graphs = open_graphs(runtime, folder, threads)?;
    let pipeline = open_pipeline(folder, settings, graphs)?;
    let options = options(&pipeline, MAX_CHECKED_TOKENS);
    let text = texts(&settings.languages, 0)
        .take(1)
        .map(str::to_owned)
        .collect();
    let generated = wait(|| pipeline.generate(text, &options, Deadline::within(TIMEOUT)));
    generated.map_err(|error| {
        Error::model_because("the model fails on a sample text", error)
            .with_hint("check its weights and `config.json`")
    })?;
    Ok(pipeline)
}

/// A model's sample texts: Portuguese if it reads Portuguese, English otherwise.
fn texts(languages: &Languages, weight_bytes: u64) -> impl Iterator<Item = &'static str> {
    let reads_portuguese = match languages {
        Languages::Pair { source, .. } | Languages::Prefix { source, .. } => ["pt", "por"]
            .iter()
            .any(|code| source.split(['-', '_']).next() == Some(code)),
        Languages::Tokens { .. }
        | Languages::Instructions { .. }
        | Languages::Tags { .. }
        | Languages::None => false,
    };
    let list = if reads_portuguese {
        PORTUGUESE
    } else {
        SENTENCES
    };
    let count = MAX_TEXTS as u64 * MAX_WEIGHT_BYTES / weight_bytes.max(MAX_WEIGHT_BYTES);
    let short = list.lines().filter(|text| text.len() <= MAX_TEXT_BYTES);
    short.take((count as usize).max(MIN_TEXTS))
}

/// The pipeline of these graphs, with the tokenizers and the shortlist of the bundle in `folder`.
fn open_pipeline(
    folder: &Path,
    settings: &Seq2SeqSettings,
    graphs: Form,
) -> Result<Seq2SeqPipeline> {
    let read = |name: &str| read(&folder.join(name));
    let tokenizer = |name: &str| Tokenizer::from_json(&read(name)?).map(Arc::new);
    let shortlist = |name: &str| Shortlist::from_bytes(&read(name)?).map(Arc::new);
    let target = settings.target_tokenizer.as_deref().unwrap_or(TOKENIZER);
    let parts = Seq2SeqParts {
        tokenizer: tokenizer(TOKENIZER)?,
        target: tokenizer(target)?,
        shortlist: settings.shortlist.as_deref().map(shortlist).transpose()?,
        route: Route::seq2seq(Some(graphs), None),
    };
    Seq2SeqPipeline::new(parts, settings.clone())
}

fn open_graphs(runtime: Runtime, folder: &Path, threads: NonZeroUsize) -> Result<Form> {
    let graphs = [ENCODER, DECODER].map(|name| folder.join(name));
    Ok(Arc::new(OnnxSeq2Seq::open(
        runtime,
        graphs.each_ref(),
        Parallelism::WithinStep(threads),
    )?))
}

/// Greedy generation of at most `max_length` tokens, from English and to Portuguese if the model has these languages.
fn options(pipeline: &Seq2SeqPipeline, max_length: usize) -> Seq2SeqOptions {
    let pair = pipeline.directions().example_pair();
    let requested = RequestedLanguages {
        source: Some(&pair.source),
        target: Some("portuguese"),
    };
    let pair = pipeline
        .directions()
        .find(requested)
        .unwrap_or(pair.clone());
    let translates = pipeline.settings().languages != Languages::None;
    Seq2SeqOptions {
        source: translates.then_some(pair.source),
        target: translates.then_some(pair.target),
        split: None,
        truncate: true,
        clean_up_spaces: false,
        generation: GenerationOptions {
            num_beams: Some(1),
            num_return_sequences: Some(1),
            do_sample: Some(false),
            max_length: Some(max_length.min(pipeline.settings().max_positions)),
            ..GenerationOptions::default()
        },
        max_sentences: 1,
    }
}

/// A model's graphs.
type Form = Arc<dyn Seq2SeqBackend>;

/// Prepares texts for any form of a model.
struct Generator {
    /// The pipeline without its shortlist, which is applied here, since texts are generated without it too.
    pipeline: Seq2SeqPipeline,
    shortlist: Option<Arc<Shortlist>>,
}

/// A model in fp32 and quantized.
pub struct Pair {
    generator: Generator,
    /// The fp32 and the quantized form.
    forms: [Form; 2],
}

/// Sums over all texts.
#[derive(Default)]
struct Totals {
    chrf: Chrf,
    similarity: f64,
    identical: usize,
    steps: usize,
    agreeing: usize,
    difference: f64,
    /// Similarity without a shortlist, for models that have one.
    unrestricted: Option<f64>,
    /// Time per form.
    times: [Duration; 2],
}

/// One form's generated text.
struct Output {
    /// The tokens: with a shortlist, their indices in it.
    ids: Vec<i64>,
    text: String,
    time: Duration,
}

/// A model's prediction in one step.
#[derive(Clone, Copy)]
struct Step {
    likeliest: usize,
    /// The next token's log probability.
    probability: f64,
}

impl Pair {
    /// Opens written graphs in these folders, in fp32 and quantized, each for half the CPUs. The second folder is the
    /// bundle's, with its tokenizers and its shortlist.
    pub fn open(
        runtime: Runtime,
        [reference, quantized]: [&Path; 2],
        settings: &Seq2SeqSettings,
    ) -> Result<Self> {
        let threads =
            thread::available_parallelism().map_or(1, |threads| threads.get().div_ceil(2));
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        let reference = open_graphs(runtime, reference, threads)?;
        let pipeline = open_pipeline(quantized, settings, Arc::clone(&reference))?;
        Ok(Self {
            generator: Generator::new(&pipeline),
            forms: [reference, open_graphs(runtime, quantized, threads)?],
        })
    }

    /// Compares both forms' texts, with one `progress` step per text.
    fn totals(&self, texts: &[&str], progress: &dyn Progress) -> Result<Totals> {
        progress.stage("measure the quality", texts.len());
        let options = options(&self.generator.pipeline, MAX_NEW_TOKENS);
        let mut totals = Totals::default();
        for text in texts {
            wait(|| self.compare(text, &options, &mut totals))?;
            progress.step();
        }
        Ok(totals)
    }

    /// Both forms' results on texts with references.
    pub fn references(&self, pairs: &Pairs, progress: &dyn Progress) -> Result<[PairFigures; 2]> {
        let [reference, quantized] = &self.forms;
        let figures = |form| self.generator.references(form, pairs, progress);
        Ok([figures(reference)?, figures(quantized)?])
    }

    async fn compare(
        &self,
        text: &str,
        options: &Seq2SeqOptions,
        totals: &mut Totals,
    ) -> Result<()> {
        let (generator, [reference, quantized]) = (&self.generator, &self.forms);
        let whole = generator.pipeline.decoding_of(text, options)?;
        let decoding = generator.restricted(&whole);
        let generate = async |decoding: &_| {
            futures::try_join!(
                generator.generate(reference, decoding),
                generator.generate(quantized, decoding)
            )
        };
        let (expected, found) = generate(&decoding).await?;
        totals.chrf.add(&found.text, &expected.text);
        totals.similarity += similarity(&expected.text, &found.text);
        totals.identical += usize::from(expected.text == found.text);
        totals.times[0] += expected.time;
        totals.times[1] += found.time;
        let target: Arc<[i64]> = std::iter::once(decoding.config.start())
            .chain(expected.ids)
            .collect();
        let (expected, found) = futures::try_join!(
            steps(reference, &decoding, &target),
            steps(quantized, &decoding, &target)
        )?;
        for (expected, found) in expected.into_iter().zip(found) {
            totals.steps += 1;
            totals.agreeing += usize::from(expected.likeliest == found.likeliest);
            totals.difference += (expected.probability - found.probability).abs();
        }
        if let Some(decoding) = generator.unrestricted(&whole) {
            let (expected, found) = generate(&decoding).await?;
            *totals.unrestricted.get_or_insert_default() += similarity(&expected.text, &found.text);
        }
        Ok(())
    }
}

impl Generator {
    fn new(pipeline: &Seq2SeqPipeline) -> Self {
        Self {
            pipeline: pipeline.without_shortlist(),
            shortlist: pipeline.shortlist().cloned(),
        }
    }

    /// With the tokens that the shortlist allows, if there is one.
    fn restricted(&self, whole: &Decoding) -> Decoding {
        let Some(shortlist) = &self.shortlist else {
            return whole.clone();
        };
        let source = whole.sources.rows.iter().flatten();
        let source: Vec<u32> = source.filter_map(|id| u32::try_from(*id).ok()).collect();
        within(whole, shortlist.allowed(&source, UNKNOWN))
    }

    /// With all tokens that can be generated, for a model with a shortlist.
    fn unrestricted(&self, whole: &Decoding) -> Option<Decoding> {
        let all = 0..=i64::from(self.shortlist.as_ref()?.largest());
        Some(within(
            whole,
            all.filter(|id| *id != i64::from(UNKNOWN)).collect(),
        ))
    }

    /// Generates greedily.
    async fn generate(
        &self,
        form: &Form,
        Decoding { sources, config }: &Decoding,
    ) -> Result<Output> {
        let infos = [SourceInfo {
            length: sources.rows.iter().map(Vec::len).sum(),
            number: 0,
        }];
        let config = config.clone();
        let work = move |decoder: &mut dyn Decoder| {
            generate(decoder, &infos, &config, Deadline::within(TIMEOUT))
        };
        let (generated, time) = run(form, sources, work).await?;
        let ids = generated
            .into_iter()
            .flatten()
            .next()
            .map(|text| text.ids)
            .unwrap_or_default();
        let known = ids.iter().map(|id| match &sources.shortlist {
            Some(shortlist) => shortlist.get(*id as usize).map_or(0, |id| *id as u32),
            None => *id as u32,
        });
        let target = self.pipeline.target_tokenizer();
        let known: Vec<u32> = known
            .filter(|id| (*id as usize) < target.vocabulary_size())
            .collect();
        Ok(Output {
            text: target.decode(&known, true)?,
            ids,
            time,
        })
    }

    /// A form's results on texts with references.
    fn references(
        &self,
        form: &Form,
        pairs: &Pairs,
        progress: &dyn Progress,
    ) -> Result<PairFigures> {
        let Pairs::References(pairs) = pairs else {
            return Err(unfit(pairs, "a model with vectors or labels"));
        };
        progress.stage("compare with the references", pairs.len());
        let options = options(&self.pipeline, MAX_REFERENCE_TOKENS);
        let (mut chrf, mut exact, mut surprise, mut tokens) = (Chrf::default(), 0, 0.0, 0_u32);
        for [text, reference] in pairs {
            let (output, steps) = wait(|| self.reference(form, text, reference, &options))?;
            chrf.add(output.text.trim(), reference);
            exact += usize::from(output.text.trim() == reference.trim());
            surprise -= steps.iter().map(|step| step.probability).sum::<f64>();
            tokens += steps.len() as u32;
            progress.step();
        }
        Ok(PairFigures::References {
            chrf: chrf.score(),
            exact_match: exact as f64 / pairs.len() as f64,
            cross_entropy: (tokens > 0).then(|| surprise / f64::from(tokens)),
        })
    }

    /// Generates a text, and predicts each token of its reference that the model chooses: the end, but not the decoder's
    /// start and the language. There are no predictions for models whose target tokenizer only decodes.
    async fn reference(
        &self,
        form: &Form,
        text: &str,
        reference: &str,
        options: &Seq2SeqOptions,
    ) -> Result<(Output, Vec<Step>)> {
        let whole = self.pipeline.decoding_of(text, options)?;
        let output = self.generate(form, &self.restricted(&whole)).await?;
        let (settings, tokenizer) = (self.pipeline.settings(), self.pipeline.target_tokenizer());
        if settings.target_tokenizer.is_some() {
            return Ok((output, Vec::new()));
        }
        // References also have tokens that no shortlist allows.
        let decoding = match &self.shortlist {
            Some(shortlist) => within(&whole, (0..=i64::from(shortlist.largest())).collect()),
            None => whole,
        };
        let mut target: Vec<i64> = decoding.config.first_ids().collect();
        let given = target.len();
        if given == 1 {
            let [before, _] = tokenizer.special_ids();
            target.extend(before.iter().copied().map(i64::from));
        }
        target.extend(tokenizer.ids(reference)?.into_iter().map(i64::from));
        target.extend(decoding.config.end_id());
        target.truncate(settings.max_positions);
        let steps = steps(form, &decoding, &target.into()).await?;
        Ok((output, steps.into_iter().skip(given - 1).collect()))
    }
}

/// A form's predictions for each step towards `target`, which begins with the decoder's start.
async fn steps(form: &Form, decoding: &Decoding, target: &Arc<[i64]>) -> Result<Vec<Step>> {
    let target = Arc::clone(target);
    let work = move |decoder: &mut dyn Decoder| {
        let step = |pair: &[i64]| {
            let logits = decoder.step(&pair[..1])?;
            Ok(Step::new(logits.values, pair[1] as usize))
        };
        target.windows(2).map(step).collect::<Result<Vec<Step>>>()
    };
    Ok(run(form, &decoding.sources, work).await?.0)
}

/// Runs `work` with a form's decoder. Returns the result and the time.
async fn run<T: Send + 'static>(
    form: &Form,
    sources: &SourceBatch,
    work: impl FnOnce(&mut dyn Decoder) -> Result<T> + Send + 'static,
) -> Result<(T, Duration)> {
    let started = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let work = Box::new(move |decoder: &mut dyn Decoder| {
        // Fails if the receiver has given up.
        let _ = sender.send(work(decoder)?);
        Ok(())
    });
    form.decode(sources.clone(), Deadline::within(TIMEOUT), work)
        .await?;
    let result = receiver
        .recv()
        .map_err(|error| Error::model_because("the graphs returned nothing", error))?;
    Ok((result, started.elapsed()))
}

/// The same with a shortlist.
fn within(decoding: &Decoding, shortlist: Vec<i64>) -> Decoding {
    let config = decoding.config.within(&shortlist);
    Decoding {
        sources: SourceBatch {
            shortlist: Some(shortlist),
            ..decoding.sources.clone()
        },
        config,
    }
}

impl Step {
    fn new(logits: &[f32], next: usize) -> Self {
        let (likeliest, largest) =
            logits
                .iter()
                .enumerate()
                .fold((0, f32::MIN), |best, (place, logit)| {
                    if *logit > best.1 {
                        (place, *logit)
                    } else {
                        best
                    }
                });
        let sum: f64 = logits
            .iter()
            .map(|logit| f64::from(logit - largest).exp())
            .sum();
        let logit = logits.get(next).copied().unwrap_or(f32::MIN);
        Self {
            likeliest,
            probability: f64::from(logit - largest) - sum.ln(),
        }
    }
}

impl Totals {
    fn quality(&self, texts: usize) -> Quality {
        let of_texts = |sum: f64| (sum / texts.max(1) as f64) as f32;
        let of_steps = |sum: f64| (sum / self.steps.max(1) as f64) as f32;
        Quality::Seq2Seq {
            texts,
            chrf: Some(self.chrf.score() as f32),
            similarity: of_texts(self.similarity),
            identical: of_texts(self.identical as f64),
            similarity_without_shortlist: self.unrestricted.map(of_texts),
            token_agreement: of_steps(self.agreeing as f64),
            token_difference: of_steps(self.difference),
        }
    }
}

/// Word-level similarity: twice the longest common subsequence, divided by the total word count.
fn similarity(left: &str, right: &str) -> f64 {
    let [left, right]: [Vec<&str>; 2] = [left, right].map(|text| text.split_whitespace().collect());
    if left.is_empty() && right.is_empty() {
        return 1.0;
    }
    // Longest common subsequence, one table row at a time.
    let mut row = vec![0_usize; right.len() + 1];
    for word in &left {
        let mut diagonal = 0;
        for (place, other) in right.iter().enumerate() {
            let above = row[place + 1];
            row[place + 1] = if word == other {
                diagonal + 1
            } else {
                above.max(row[place])
            };
            diagonal = above;
        }
    }
    2.0 * row[right.len()] as f64 / (left.len() + right.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_counts_words_in_order() {
        assert_eq!(similarity("a b c d", "a b c d"), 1.0);
        assert_eq!(similarity("a b c d", "a x c d"), 0.75);
        assert_eq!(similarity("a b", "b a"), 0.5);
        assert_eq!(similarity("a b", "c"), 0.0);
        assert_eq!(similarity("", ""), 1.0);
    }

    #[test]
    fn a_step_has_the_likeliest_token_and_the_probability_of_the_next() {
        let step = Step::new(&[0.0, 3.0_f32.ln(), 0.0], 0);
        assert_eq!(step.likeliest, 1);
        assert!((step.probability.exp() - 0.2).abs() < 1e-6);
    }

    #[test]
    fn texts_depend_on_the_language_and_the_size_of_a_model() {
        let pair = |source: &str| Languages::Pair {
            source: source.into(),
            target: "de".into(),
        };
        assert_eq!(texts(&pair("pt"), 0).next(), Some("Bom dia!"));
        for language in ["pt", "por_Latn", "en", "fi"] {
            assert_eq!(
                texts(&pair(language), MAX_WEIGHT_BYTES).count(),
                MAX_TEXTS,
                "{language}"
            );
            assert_eq!(
                texts(&pair(language), 2_000_000_000).count(),
                MIN_TEXTS,
                "{language}"
            );
        }
    }
}
