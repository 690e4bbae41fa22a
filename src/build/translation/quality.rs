//! How close quantised graphs come to their fp32 form in translating: step by step over the same target, and in
//! what each makes of a text by itself.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{
    backend::{
        Deadline,
        onnx::{OnnxSeq2Seq, Parallelism, Runtime},
        seq2seq::{Decoder, Seq2SeqBackend, SourceBatch},
    },
    build::{cost::Spent, quality::SENTENCES},
    error::{Error, Result},
    pipeline::{
        generation::{Bounds, GenerationConfig, GenerationOptions, SourceInfo, generate},
        translation::{Languages, TokenSide, TranslationSettings, shortlist::Shortlist},
    },
    repository::manifest::Quality,
    tokenizer::Tokenizer,
};

/// Texts for models that read Portuguese.
const PORTUGUESE: &str = include_str!("../sentences-pt.txt");
/// A sentence, rather than a paragraph.
const LONGEST_TEXT: usize = 260;
/// How many texts are compared at most, and at least.
const MOST_TEXTS: usize = 100;
const FEWEST_TEXTS: usize = 20;
/// The weights in fp32, in bytes, up to which all of them are. Of models that are larger, and slower, there are as
/// many fewer.
const MOST_WEIGHTS: u64 = 200_000_000;
/// The most tokens that are written.
const MOST_TOKENS: usize = 96;
/// The token that stands for what a shortlist's model does not know, and that it never writes.
const UNKNOWN: u32 = 1;
/// No build waits longer for one text.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is compared, and with what.
pub(in crate::build) struct Subject<'a> {
    pub(in crate::build) settings: &'a TranslationSettings,
    /// The files of the encoder and of the decoder in fp32.
    pub(in crate::build) reference: [PathBuf; 2],
    /// The quantised ones.
    pub(in crate::build) quantised: [PathBuf; 2],
    /// The folder of what reads and writes texts.
    pub(in crate::build) folder: &'a Path,
    /// The bytes of the reference's weights.
    pub(in crate::build) weights: u64,
}

/// Translates sample texts with both and compares. `progress` is called after each text.
pub(in crate::build) fn measure(
    runtime: Runtime,
    subject: &Subject<'_>,
    progress: &(dyn Fn() + Sync),
) -> Result<(Quality, Spent)> {
    let bench = Bench::open(runtime, subject)?;
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(Error::io("cannot wait for the graphs"))?;
    let mut sum = Sum::default();
    for text in texts(&subject.settings.languages, subject.weights) {
        waiter.block_on(bench.compare(text, &mut sum))?;
        progress();
    }
    Ok((sum.quality(), sum.spent))
}

/// How many texts are compared.
pub(in crate::build) fn count(languages: &Languages, weights: u64) -> usize {
    texts(languages, weights).count()
}

/// The texts for a model: in Portuguese if that is what it reads, in English otherwise, for want of others.
fn texts(languages: &Languages, weights: u64) -> impl Iterator<Item = &'static str> {
    let reads_portuguese = match languages {
        Languages::Pair { source, .. } | Languages::Prefix { source, .. } => {
            ["pt", "por"].iter().any(|code| source.split(['-', '_']).next() == Some(code))
        }
        Languages::Tokens { .. } => false,
    };
    let list = if reads_portuguese { PORTUGUESE } else { SENTENCES };
    let affordable = MOST_TEXTS as u64 * MOST_WEIGHTS / weights.max(MOST_WEIGHTS);
    let count = (affordable as usize).max(FEWEST_TEXTS);
    list.lines().filter(|text| text.len() <= LONGEST_TEXT).take(count)
}

/// Both models side by side.
struct Bench<'a> {
    settings: &'a TranslationSettings,
    tokenizer: Tokenizer,
    target: Tokenizer,
    shortlist: Option<Shortlist>,
    reference: OnnxSeq2Seq,
    quantised: OnnxSeq2Seq,
    /// What the encoder reads before and after a text.
    around: [Vec<i64>; 2],
    options: GenerationOptions,
}

/// What was found over all texts.
#[derive(Default)]
struct Sum {
    texts: usize,
    similarity: f64,
    identical: usize,
    steps: usize,
    agreeing: usize,
    difference: f64,
    unrestricted: Option<f64>,
    spent: Spent,
}

/// What a model makes of one step.
#[derive(Clone, Copy)]
struct Step {
    likeliest: usize,
    /// The logarithm of the probability of the token that follows.
    probability: f64,
}

impl<'a> Bench<'a> {
    fn open(runtime: Runtime, subject: &Subject<'a>) -> Result<Self> {
        let settings = subject.settings;
        // Each takes a core of its own.
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get().div_ceil(2));
        let parallel = Parallelism::WithinStep(NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN));
        let open = |graphs: &[PathBuf; 2]| OnnxSeq2Seq::open(runtime, graphs.each_ref(), parallel);
        let read = |name: &str| {
            let path = subject.folder.join(name);
            std::fs::read(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))
        };
        let tokenizer = |name: &str| Tokenizer::from_json(&read(name)?);
        let name = settings.target_tokenizer.as_deref().unwrap_or(crate::repository::bundle::TOKENIZER);
        let shortlist = settings.shortlist.as_deref();
        let (before, after, first) = languages(settings)?;
        Ok(Self {
            settings,
            tokenizer: tokenizer(crate::repository::bundle::TOKENIZER)?,
            target: tokenizer(name)?,
            shortlist: shortlist.map(|name| Shortlist::from_bytes(&read(name)?)).transpose()?,
            reference: open(&subject.reference)?,
            quantised: open(&subject.quantised)?,
            around: [before, after],
            options: GenerationOptions {
                num_beams: Some(1),
                num_return_sequences: Some(1),
                do_sample: Some(false),
                forced_bos_token_id: first,
                max_length: Some(MOST_TOKENS.min(settings.max_positions)),
                ..GenerationOptions::default()
            },
        })
    }

    async fn compare(&self, text: &str, sum: &mut Sum) -> Result<()> {
        let source = self.source(text)?;
        let shortlist = self.shortlist.as_ref().map(|shortlist| self.allowed(shortlist, &source));
        let similarity = self.compare_greedy(&source, shortlist.clone()).await?;
        sum.texts += 1;
        sum.similarity += similarity.1;
        sum.identical += usize::from(similarity.2);
        sum.spent = sum.spent.with(similarity.3);
        for (reference, quantised) in self.steps(&source, shortlist, &similarity.0).await? {
            sum.steps += 1;
            sum.agreeing += usize::from(reference.likeliest == quantised.likeliest);
            sum.difference += (reference.probability - quantised.probability).abs();
        }
        if let Some(shortlist) = &self.shortlist {
            let all = (0..=i64::from(shortlist.largest())).filter(|id| *id != i64::from(UNKNOWN)).collect();
            let (_, unrestricted, ..) = self.compare_greedy(&source, Some(all)).await?;
            *sum.unrestricted.get_or_insert_default() += unrestricted;
        }
        Ok(())
    }

    /// What the encoder reads.
    fn source(&self, text: &str) -> Result<Vec<i64>> {
        let [before, after] = &self.around;
        let ids = self.tokenizer.tokens(text, false)?.into_iter().map(|token| token.id);
        let known = ids.map(|id| self.settings.unknown_tokens.map_or(id, |unknown| unknown.read(id)));
        let room = self.settings.max_tokens.saturating_sub(before.len() + after.len());
        Ok(before
            .iter()
            .copied()
            .chain(known.map(i64::from).take(room))
            .chain(after.iter().copied())
            .collect())
    }

    fn allowed(&self, shortlist: &Shortlist, source: &[i64]) -> Vec<i64> {
        let source: Vec<u32> = source.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
        shortlist.allowed(&source, UNKNOWN)
    }

    /// What the reference writes by itself, in the places of the shortlist if there is one; how similar what the
    /// quantised model writes is to that; whether it is the same; and the time that both took.
    async fn compare_greedy(
        &self,
        source: &[i64],
        shortlist: Option<Vec<i64>>,
    ) -> Result<(Vec<i64>, f64, bool, Spent)> {
        let ((reference, slow), (quantised, fast)) = futures::try_join!(
            self.greedy(&self.reference, source, shortlist.clone()),
            self.greedy(&self.quantised, source, shortlist.clone()),
        )?;
        let text = |ids: &[i64]| {
            let ids = ids.iter().map(|id| match &shortlist {
                Some(shortlist) => shortlist.get(*id as usize).map_or(0, |id| *id as u32),
                None => *id as u32,
            });
            let ids: Vec<u32> = ids.filter(|id| (*id as usize) < self.target.vocabulary_size()).collect();
            self.target.decode(&ids, true)
        };
        let (left, right) = (text(&reference)?, text(&quantised)?);
        let spent = Spent { texts: 1, reference: slow, quantised: fast };
        Ok((reference, similarity(&left, &right), left == right, spent))
    }

    async fn greedy(
        &self,
        model: &OnnxSeq2Seq,
        source: &[i64],
        shortlist: Option<Vec<i64>>,
    ) -> Result<(Vec<i64>, Duration)> {
        let started = Instant::now();
        let vocabulary =
            model.vocabulary().or(self.shortlist.as_ref().map(|list| list.largest() as usize + 1));
        let bounds =
            Bounds { vocabulary: vocabulary.unwrap_or_default(), max_length: self.settings.max_positions };
        let search = GenerationConfig::new(&self.settings.generation, &self.options, bounds)?;
        let search = shortlist.as_ref().map_or_else(|| search.clone(), |shortlist| search.within(shortlist));
        let sources = [SourceInfo { length: source.len(), number: 0 }];
        let deadline = Deadline::within(PATIENCE);
        let work = move |decoder: &mut dyn Decoder| generate(decoder, &sources, &search, deadline);
        let generated = self.run(model, source, shortlist, work).await?;
        let ids = generated.into_iter().flatten().next().map(|text| text.ids).unwrap_or_default();
        Ok((ids, started.elapsed()))
    }

    /// What both make of each step towards `target`.
    async fn steps(
        &self,
        source: &[i64],
        shortlist: Option<Vec<i64>>,
        target: &[i64],
    ) -> Result<Vec<(Step, Step)>> {
        let start = self.settings.generation.decoder_start_token_id;
        let target: Arc<[i64]> = std::iter::once(start).chain(target.iter().copied()).collect();
        let work = |target: Arc<[i64]>| {
            move |decoder: &mut dyn Decoder| {
                let step = |pair: &[i64]| {
                    let logits = decoder.step(&pair[..1])?;
                    Ok(Step::of(logits.values, pair[1] as usize))
                };
                target.windows(2).map(step).collect::<Result<Vec<Step>>>()
            }
        };
        let (reference, quantised) = futures::try_join!(
            self.run(&self.reference, source, shortlist.clone(), work(Arc::clone(&target))),
            self.run(&self.quantised, source, shortlist, work(target)),
        )?;
        Ok(reference.into_iter().zip(quantised).collect())
    }

    async fn run<T: Send + 'static>(
        &self,
        model: &OnnxSeq2Seq,
        source: &[i64],
        shortlist: Option<Vec<i64>>,
        work: impl FnOnce(&mut dyn Decoder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::channel();
        let work = Box::new(move |decoder: &mut dyn Decoder| {
            // Who no longer waits wants no answer.
            let _ = sender.send(work(decoder)?);
            Ok(())
        });
        let pad = self.settings.generation.pad_token_id;
        let sources = SourceBatch { rows: vec![source.to_vec()], pad, shortlist };
        model.decode(sources, Deadline::within(PATIENCE), work).await?;
        receiver.recv().map_err(|error| Error::model_because("the graphs gave no answer", error))
    }
}

/// The tokens before and after a text, and the one that its translation begins with, if any: from English if the
/// model can, to Portuguese if it can.
fn languages(settings: &TranslationSettings) -> Result<(Vec<i64>, Vec<i64>, Option<i64>)> {
    let end = settings.generation.eos_token_ids.first().copied();
    let mut after: Vec<i64> = end.into_iter().collect();
    let (mut before, mut first) = (Vec::new(), None);
    match &settings.languages {
        Languages::Pair { .. } => {}
        Languages::Prefix { targets, .. } => {
            let target = ["pt", "por", "por_Latn"].iter().find_map(|code| targets.get(*code));
            before.extend(target.or(targets.values().next()));
        }
        Languages::Tokens { codes, side } => {
            let find = |wanted: [&str; 2]| wanted.iter().find_map(|code| codes.get(*code)).copied();
            let any = |place: usize| codes.values().nth(place).copied();
            let (source, target) = (find(["en", "eng_Latn"]).or(any(0)), find(["pt", "por_Latn"]).or(any(1)));
            first = target;
            match side {
                TokenSide::Before => before.extend(source),
                TokenSide::After => after.extend(source),
            }
        }
    }
    if after.is_empty() {
        return Err(Error::model("expected a token that ends a text, but found none"));
    }
    Ok((before, after, first))
}

impl Step {
    fn of(logits: &[f32], next: usize) -> Self {
        let (likeliest, largest) = logits
            .iter()
            .enumerate()
            .fold((0, f32::MIN), |best, (place, logit)| if *logit > best.1 { (place, *logit) } else { best });
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let logit = logits.get(next).copied().unwrap_or(f32::MIN);
        Self { likeliest, probability: f64::from(logit - largest) - sum.ln() }
    }
}

impl Sum {
    fn quality(&self) -> Quality {
        let of_texts = |sum: f64| (sum / self.texts.max(1) as f64) as f32;
        let of_steps = |sum: f64| (sum / self.steps.max(1) as f64) as f32;
        Quality::Translation {
            texts: self.texts,
            similarity: of_texts(self.similarity),
            identical: of_texts(self.identical as f64),
            similarity_without_shortlist: self.unrestricted.map(of_texts),
            token_agreement: of_steps(self.agreeing as f64),
            token_difference: of_steps(self.difference),
        }
    }
}

/// Twice the words that two texts have in common, in the same order, over the words of both.
fn similarity(left: &str, right: &str) -> f64 {
    let [left, right]: [Vec<&str>; 2] = [left, right].map(|text| text.split_whitespace().collect());
    if left.is_empty() && right.is_empty() {
        return 1.0;
    }
    // The longest common subsequence, a row of its table at a time.
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
    fn a_step_tells_the_likeliest_token_and_the_next_ones_probability() {
        let step = Step::of(&[0.0, 3.0_f32.ln(), 0.0], 0);
        assert_eq!(step.likeliest, 1);
        assert!((step.probability.exp() - 0.2).abs() < 1e-6);
    }

    #[test]
    fn there_are_texts_for_what_a_model_reads() {
        let pair = |source: &str| Languages::Pair { source: source.into(), target: "de".into() };
        assert_eq!(texts(&pair("pt"), 0).next(), Some("Bom dia!"));
        for language in ["pt", "por_Latn", "en", "fi"] {
            assert_eq!(count(&pair(language), MOST_WEIGHTS), MOST_TEXTS, "{language}");
            assert_eq!(count(&pair(language), 2_000_000_000), FEWEST_TEXTS, "{language}");
        }
    }
}
