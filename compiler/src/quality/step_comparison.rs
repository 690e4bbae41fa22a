//! Text generator quality: both forms read sample texts and are compared step by step on the way to the fp32 form's
//! output.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{PORTUGUESE, SENTENCES, wait};
use crate::{
    cost::Comparison,
    files::read,
    progress::Progress,
    source::{DECODER, ENCODER},
};
use kivu::{
    backend::{
        Deadline,
        onnx::{OnnxSeq2Seq, Parallelism, Runtime},
        routing::Route,
        seq2seq::{Decoder, Seq2SeqBackend, SourceBatch},
    },
    error::{Error, Result},
    pipeline::{
        generation::{Generated, GenerationOptions, SourceInfo, generate},
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
/// Maximum number of generated tokens if there is no fp32 form to compare with.
const MAX_CHECKED_TOKENS: usize = 4;
/// Unknown token, which models with a shortlist never generate.
const UNKNOWN: u32 = 1;
/// Timeout per text.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Written graphs: fp32 and quantized. The second folder is the bundle's, with its tokenizers and its shortlist.
pub(crate) struct Forms<'a> {
    pub(crate) folders: [&'a Path; 2],
    pub(crate) bytes: [u64; 2],
}

/// Translates sample texts with both forms.
pub(crate) fn measure(
    runtime: Runtime,
    Forms { folders, bytes }: Forms<'_>,
    settings: &Seq2SeqSettings,
    progress: &dyn Progress,
) -> Result<(Quality, Comparison)> {
    let texts: Vec<&str> = texts(&settings.languages, bytes[0]).collect();
    progress.stage("measure the quality", texts.len());
    let pair = Pair::open(runtime, folders, settings)?;
    let mut totals = Totals::default();
    for text in &texts {
        wait(|| pair.compare(text, &mut totals))?;
        progress.step();
    }
    // Both forms run at the same time on half the CPUs each, one text at a time.
    Ok((totals.quality(texts.len()), Comparison::new(bytes, totals.times, texts.len())))
}

/// Generates a few tokens with the bundle's graphs, to check that they run.
pub(crate) fn check(runtime: Runtime, folder: &Path, settings: &Seq2SeqSettings) -> Result<()> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let Files { tokenizer, target, shortlist } = Files::read(folder, settings)?;
    let route = Route::seq2seq(Some(open_graphs(runtime, folder, threads)?), None);
    let shortlist = shortlist.map(Arc::new);
    let pipeline =
        Seq2SeqPipeline::new(Seq2SeqParts { tokenizer, target, shortlist, route }, settings.clone())?;
    let options = options(&pipeline, MAX_CHECKED_TOKENS);
    let text = texts(&settings.languages, 0).take(1).map(str::to_owned).collect();
    let generated = wait(|| pipeline.generate(text, &options, Deadline::within(TIMEOUT)));
    generated.map(drop).map_err(|error| {
        Error::model_because("the model fails on a sample text; check its weights and `config.json`", error)
    })
}

/// A model's sample texts: Portuguese if it reads Portuguese, English otherwise.
fn texts(languages: &Languages, weight_bytes: u64) -> impl Iterator<Item = &'static str> {
    let reads_portuguese = match languages {
        Languages::Pair { source, .. } | Languages::Prefix { source, .. } => {
            ["pt", "por"].iter().any(|code| source.split(['-', '_']).next() == Some(code))
        }
        Languages::Tokens { .. } | Languages::Instructions { .. } | Languages::None => false,
    };
    let list = if reads_portuguese { PORTUGUESE } else { SENTENCES };
    let count = MAX_TEXTS as u64 * MAX_WEIGHT_BYTES / weight_bytes.max(MAX_WEIGHT_BYTES);
    let short = list.lines().filter(|text| text.len() <= MAX_TEXT_BYTES);
    short.take((count as usize).max(MIN_TEXTS))
}

/// A bundle's tokenizers and shortlist.
struct Files {
    tokenizer: Arc<Tokenizer>,
    target: Arc<Tokenizer>,
    shortlist: Option<Shortlist>,
}

impl Files {
    fn read(folder: &Path, settings: &Seq2SeqSettings) -> Result<Self> {
        let read = |name: &str| read(&folder.join(name));
        let tokenizer = Arc::new(Tokenizer::from_json(&read(TOKENIZER)?)?);
        let target = settings.target_tokenizer.as_deref().unwrap_or(TOKENIZER);
        let target = Arc::new(Tokenizer::from_json(&read(target)?)?);
        let shortlist = settings.shortlist.as_deref();
        let shortlist = shortlist.map(|name| Shortlist::from_bytes(&read(name)?)).transpose()?;
        Ok(Self { tokenizer, target, shortlist })
    }
}

fn open_graphs(runtime: Runtime, folder: &Path, threads: NonZeroUsize) -> Result<Arc<OnnxSeq2Seq>> {
    let graphs = [ENCODER, DECODER].map(|name| folder.join(name));
    OnnxSeq2Seq::open(runtime, graphs.each_ref(), Parallelism::WithinStep(threads)).map(Arc::new)
}

/// Greedy generation of at most `max_length` tokens, from English and to Portuguese if the model has these languages.
fn options(pipeline: &Seq2SeqPipeline, max_length: usize) -> Seq2SeqOptions {
    let pair = pipeline.directions().example_pair();
    let requested = RequestedLanguages { source: Some(&pair.source), target: Some("portuguese") };
    let pair = pipeline.directions().find(requested).unwrap_or(pair.clone());
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

/// A model in fp32 and quantized.
struct Pair {
    /// Prepares texts.
    pipeline: Seq2SeqPipeline,
    options: Seq2SeqOptions,
    target: Arc<Tokenizer>,
    shortlist: Option<Shortlist>,
    /// In fp32, and quantized.
    forms: [Arc<OnnxSeq2Seq>; 2],
}

/// Sums over all texts.
#[derive(Default)]
struct Totals {
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
    fn open(runtime: Runtime, folders: [&Path; 2], settings: &Seq2SeqSettings) -> Result<Self> {
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get().div_ceil(2));
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        let forms = [open_graphs(runtime, folders[0], threads)?, open_graphs(runtime, folders[1], threads)?];
        let Files { tokenizer, target, shortlist } = Files::read(folders[1], settings)?;
        let route = Route::seq2seq(Some(Arc::clone(&forms[0]) as _), None);
        // The shortlist is applied here, since texts are translated without it too.
        let parts = Seq2SeqParts { tokenizer, target: Arc::clone(&target), shortlist: None, route };
        let pipeline = Seq2SeqPipeline::new(parts, settings.clone())?;
        let options = options(&pipeline, MAX_NEW_TOKENS);
        Ok(Self { pipeline, options, target, shortlist, forms })
    }

    async fn compare(&self, text: &str, totals: &mut Totals) -> Result<()> {
        let whole = self.pipeline.decoding_of(text, &self.options)?;
        let decoding = match &self.shortlist {
            Some(shortlist) => {
                let source = whole.sources.rows.iter().flatten();
                let source: Vec<u32> = source.filter_map(|id| u32::try_from(*id).ok()).collect();
                within(&whole, shortlist.allowed(&source, UNKNOWN))
            }
            None => whole.clone(),
        };
        let [reference, quantized] = self.generate(&decoding).await?;
        totals.similarity += similarity(&reference.text, &quantized.text);
        totals.identical += usize::from(reference.text == quantized.text);
        totals.times[0] += reference.time;
        totals.times[1] += quantized.time;
        let [reference, quantized] = self.steps(&decoding.sources, &reference.ids).await?;
        for (reference, quantized) in reference.into_iter().zip(quantized) {
            totals.steps += 1;
            totals.agreeing += usize::from(reference.likeliest == quantized.likeliest);
            totals.difference += (reference.probability - quantized.probability).abs();
        }
        if let Some(shortlist) = &self.shortlist {
            let all = (0..=i64::from(shortlist.largest())).filter(|id| *id != i64::from(UNKNOWN));
            let [reference, quantized] = self.generate(&within(&whole, all.collect())).await?;
            *totals.unrestricted.get_or_insert_default() += similarity(&reference.text, &quantized.text);
        }
        Ok(())
    }

    /// Generates greedily with both forms.
    async fn generate(&self, Decoding { sources, config }: &Decoding) -> Result<[Output; 2]> {
        let infos = [SourceInfo { length: sources.rows.iter().map(Vec::len).sum(), number: 0 }];
        let config = config.clone();
        let work =
            move |decoder: &mut dyn Decoder| generate(decoder, &infos, &config, Deadline::within(TIMEOUT));
        let translation = |(generated, time): (Vec<Vec<Generated>>, Duration)| {
            let ids = generated.into_iter().flatten().next().map(|text| text.ids).unwrap_or_default();
            let known = ids.iter().map(|id| match &sources.shortlist {
                Some(shortlist) => shortlist.get(*id as usize).map_or(0, |id| *id as u32),
                None => *id as u32,
            });
            let known: Vec<u32> = known.filter(|id| (*id as usize) < self.target.vocabulary_size()).collect();
            Ok::<_, Error>(Output { text: self.target.decode(&known, true)?, ids, time })
        };
        let [reference, quantized] = self.run(sources, work).await?;
        Ok([translation(reference)?, translation(quantized)?])
    }

    /// Both forms' predictions for each step towards `target`.
    async fn steps(&self, sources: &SourceBatch, target: &[i64]) -> Result<[Vec<Step>; 2]> {
        let start = self.pipeline.settings().generation.decoder_start_token_id;
        let target: Arc<[i64]> = std::iter::once(start).chain(target.iter().copied()).collect();
        let work = move |decoder: &mut dyn Decoder| {
            let step = |pair: &[i64]| {
                let logits = decoder.step(&pair[..1])?;
                Ok(Step::new(logits.values, pair[1] as usize))
            };
            target.windows(2).map(step).collect::<Result<Vec<Step>>>()
        };
        Ok(self.run(sources, work).await?.map(|(steps, _)| steps))
    }

    /// Runs `work` with both forms' decoders at the same time. Returns the results and times.
    async fn run<T: Send + 'static>(
        &self,
        sources: &SourceBatch,
        work: impl FnOnce(&mut dyn Decoder) -> Result<T> + Clone + Send + 'static,
    ) -> Result<[(T, Duration); 2]> {
        let run = async |model: &OnnxSeq2Seq| {
            let (started, work) = (Instant::now(), work.clone());
            let (sender, receiver) = mpsc::channel();
            let work = Box::new(move |decoder: &mut dyn Decoder| {
                // Fails if the receiver has given up.
                let _ = sender.send(work(decoder)?);
                Ok(())
            });
            model.decode(sources.clone(), Deadline::within(TIMEOUT), work).await?;
            let result = receiver
                .recv()
                .map_err(|error| Error::model_because("the graphs returned nothing", error))?;
            Ok::<_, Error>((result, started.elapsed()))
        };
        let [reference, quantized] = &self.forms;
        let (reference, quantized) = futures::try_join!(run(reference), run(quantized))?;
        Ok([reference, quantized])
    }
}

/// The same with a shortlist.
fn within(decoding: &Decoding, shortlist: Vec<i64>) -> Decoding {
    let config = decoding.config.within(&shortlist);
    Decoding { sources: SourceBatch { shortlist: Some(shortlist), ..decoding.sources.clone() }, config }
}

impl Step {
    fn new(logits: &[f32], next: usize) -> Self {
        let (likeliest, largest) = logits
            .iter()
            .enumerate()
            .fold((0, f32::MIN), |best, (place, logit)| if *logit > best.1 { (place, *logit) } else { best });
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let logit = logits.get(next).copied().unwrap_or(f32::MIN);
        Self { likeliest, probability: f64::from(logit - largest) - sum.ln() }
    }
}

impl Totals {
    fn quality(&self, texts: usize) -> Quality {
        let of_texts = |sum: f64| (sum / texts.max(1) as f64) as f32;
        let of_steps = |sum: f64| (sum / self.steps.max(1) as f64) as f32;
        Quality::Seq2Seq {
            texts,
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
            row[place + 1] = if word == other { diagonal + 1 } else { above.max(row[place]) };
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
        let pair = |source: &str| Languages::Pair { source: source.into(), target: "de".into() };
        assert_eq!(texts(&pair("pt"), 0).next(), Some("Bom dia!"));
        for language in ["pt", "por_Latn", "en", "fi"] {
            assert_eq!(texts(&pair(language), MAX_WEIGHT_BYTES).count(), MAX_TEXTS, "{language}");
            assert_eq!(texts(&pair(language), 2_000_000_000).count(), MIN_TEXTS, "{language}");
        }
    }
}
