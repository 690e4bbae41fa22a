//! How close a quantised graph comes to its fp32 form, over real texts.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{cost::Spent, recipe::QualityFloor};
use crate::{
    backend::onnx::{Runtime, Session},
    error::{Error, Result},
    pipeline::{
        classification::{ClassificationSettings, descending},
        embedding::EmbeddingSettings,
        pooling::cosine,
    },
    repository::manifest::Quality,
    tensor::Tensor,
    tokenizer::{Encoding, Side, Tokenizer, Truncation},
};

/// Texts of mixed kinds and lengths, one a line, as real traffic has them.
pub const SENTENCES: &str = include_str!("sentences.txt");

/// The two graphs to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Graphs<'a> {
    /// The graph in fp32.
    pub reference: &'a Path,
    /// The quantised graph.
    pub quantised: &'a Path,
}

/// What a graph's output is made into, and so what is compared.
#[derive(Clone, Debug)]
pub enum Settings {
    /// A vector a text.
    Embedding(EmbeddingSettings),
    /// A score a label.
    Classification(ClassificationSettings),
}

impl Settings {
    fn max_tokens(&self) -> usize {
        match self {
            Self::Embedding(settings) => settings.max_tokens,
            Self::Classification(settings) => settings.max_tokens,
        }
    }

    /// The numbers that a text comes to.
    fn width(&self) -> usize {
        match self {
            Self::Embedding(settings) => settings.dimensions,
            Self::Classification(settings) => settings.labels.len(),
        }
    }

    /// The vector or the scores of one text, straight from a session.
    fn answer(&self, session: &Session, encoding: &Encoding) -> Result<Vec<f32>> {
        let name = match self {
            Self::Embedding(settings) => &settings.output,
            Self::Classification(settings) => &settings.output,
        };
        let outputs = session.run(&inputs(session, encoding)?)?;
        let output = session.signature().output(name).and_then(|place| outputs.get(place));
        let (Some(values), Some(width)) =
            (output.and_then(Tensor::as_fp32), output.and_then(|output| output.shape().last().copied()))
        else {
            return Err(Error::model(format!("expected the float output `{name}`, but found none")));
        };
        Ok(match self {
            Self::Embedding(settings) => settings.pooling.pool(values, width),
            Self::Classification(settings) => settings.function.apply(values),
        })
    }

    /// What the answers of both graphs for the same texts tell.
    fn compare(&self, answers: &[(Vec<f32>, Vec<f32>)]) -> Quality {
        let texts = answers.len();
        let mean = |sum: f32| sum / texts.max(1) as f32;
        match self {
            Self::Embedding(_) => {
                let cosines: Vec<f32> = answers.iter().map(|(left, right)| cosine(left, right)).collect();
                Quality::Embedding {
                    texts,
                    mean_cosine: mean(cosines.iter().sum()),
                    worst_cosine: cosines.iter().copied().min_by(f32::total_cmp).unwrap_or(f32::NAN),
                }
            }
            Self::Classification(_) => {
                let agree =
                    |(left, right): &&(Vec<f32>, Vec<f32>)| descending(left)[0] == descending(right)[0];
                let difference = |(left, right): &(Vec<f32>, Vec<f32>)| {
                    let differences = left.iter().zip(right).map(|(left, right)| (left - right).abs());
                    differences.sum::<f32>() / left.len().max(1) as f32
                };
                Quality::Classification {
                    texts,
                    agreement: mean(answers.iter().filter(agree).count() as f32),
                    mean_difference: mean(answers.iter().map(difference).sum()),
                }
            }
        }
    }
}

/// Gives every sentence to both graphs and compares their answers; tells as well what time both took. `progress` is
/// called after each sentence.
pub(super) fn measure(
    runtime: Runtime,
    graphs: Graphs<'_>,
    tokenizer: &Tokenizer,
    settings: &Settings,
    progress: &(dyn Fn() + Sync),
) -> Result<(Quality, Spent)> {
    let encodings = SENTENCES
        .lines()
        .map(|text| tokenizer.encode(text, settings.max_tokens(), Truncation::At(Side::Right)))
        .collect::<Result<Vec<_>>>()?;
    // Each at its text's place: summed in another order, the means would differ from build to build.
    let answers = Mutex::new(vec![(Vec::new(), Vec::new()); encodings.len()]);
    let next = AtomicUsize::new(0);
    let reference = Session::open(runtime, graphs.reference, NonZeroUsize::MIN)?;
    let quantised = Session::open(runtime, graphs.quantised, NonZeroUsize::MIN)?;
    let work = || -> Result<Spent> {
        let mut spent = Spent::default();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(encoding) = encodings.get(place) else { return Ok(spent) };
            let (left, slow) = timed(|| settings.answer(&reference, encoding))?;
            let (right, fast) = timed(|| settings.answer(&quantised, encoding))?;
            spent = spent.with(Spent { texts: 1, reference: slow, quantised: fast });
            let answer = (left, right);
            if let Ok(mut answers) = answers.lock() {
                answers[place] = answer;
            }
            progress();
        }
    };
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let spent = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_fold(Spent::default(), |sum, worker| {
            let spent =
                worker.join().unwrap_or_else(|_| Err(Error::model("measuring the quality panicked")))?;
            Ok::<_, Error>(sum.with(spent))
        })
    })?;
    Ok((settings.compare(&answers.into_inner().unwrap_or_default()), spent))
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let started = Instant::now();
    Ok((work()?, started.elapsed()))
}

/// Refuses a quality below the floor, saying by how much.
pub fn require(quality: &Quality, floor: &QualityFloor) -> Result<()> {
    // What is found, what is wanted, and how far it is from that: above zero, or not a number, is too far.
    let (texts, checks) = match *quality {
        Quality::Embedding { texts, mean_cosine, worst_cosine } => (
            texts,
            [
                (
                    "a mean cosine to fp32 of at least",
                    mean_cosine,
                    floor.mean_cosine,
                    floor.mean_cosine - mean_cosine,
                ),
                (
                    "a worst cosine to fp32 of at least",
                    worst_cosine,
                    floor.worst_cosine,
                    floor.worst_cosine - worst_cosine,
                ),
            ],
        ),
        Quality::Classification { texts, agreement, mean_difference } => (
            texts,
            [
                (
                    "a share of labels equal to those of fp32 of at least",
                    agreement,
                    floor.agreement,
                    floor.agreement - agreement,
                ),
                (
                    "a mean difference to the scores of fp32 of at most",
                    mean_difference,
                    floor.mean_difference,
                    mean_difference - floor.mean_difference,
                ),
            ],
        ),
        Quality::Translation { texts, similarity, token_agreement, .. } => (
            texts,
            [
                (
                    "a similarity to the translations of fp32 of at least",
                    similarity,
                    floor.similarity,
                    floor.similarity - similarity,
                ),
                (
                    "a share of tokens equal to those of fp32 of at least",
                    token_agreement,
                    floor.token_agreement,
                    floor.token_agreement - token_agreement,
                ),
            ],
        ),
    };
    for (what, found, wanted, off) in checks {
        if off > 0.0 || off.is_nan() {
            return Err(Error::model(format!(
                "expected {what} {wanted:.4} over {texts} texts, but found {found:.4}, which is off by {off:.4}; \
                 build with `--precision fp32`, or change the recipe's floor"
            )));
        }
    }
    Ok(())
}

/// Gives one sentence to a graph: one that cannot take it, or does not answer as its files say, goes into no
/// bundle.
pub fn try_out(session: &Session, tokenizer: &Tokenizer, settings: &Settings) -> Result<()> {
    let text = SENTENCES.lines().next().unwrap_or_default();
    let encoding = tokenizer.encode(text, settings.max_tokens(), Truncation::At(Side::Right))?;
    let found = settings.answer(session, &encoding)?.len();
    if found != settings.width() {
        return Err(Error::model(format!(
            "expected {} values, as `config.json` says, but found {found}",
            settings.width()
        )));
    }
    Ok(())
}

/// One text as the inputs that the session's graph declares.
pub fn inputs(session: &Session, encoding: &Encoding) -> Result<Vec<Tensor>> {
    let shape = [1, encoding.len()];
    session
        .signature()
        .inputs
        .iter()
        .map(|input| {
            let values = match input.name.as_str() {
                "input_ids" => encoding.ids.iter().map(|id| i64::from(*id)).collect(),
                "token_type_ids" => encoding.type_ids.iter().map(|id| i64::from(*id)).collect(),
                "attention_mask" => vec![1; encoding.len()],
                other => {
                    return Err(Error::model(format!(
                        "expected inputs among `input_ids`, `attention_mask`, `token_type_ids`, \
                         but found `{other}`"
                    )));
                }
            };
            Tensor::integers(input.element_type, shape, values)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quality(mean_cosine: f32, worst_cosine: f32) -> Quality {
        Quality::Embedding { texts: 300, mean_cosine, worst_cosine }
    }

    #[test]
    fn a_quality_below_the_floor_is_refused_with_the_difference() {
        let floor = QualityFloor::default();
        assert!(require(&quality(0.991, 0.975), &floor).is_ok());
        insta::assert_snapshot!(
            require(&quality(0.95, 0.9), &floor).unwrap_err(),
            @"expected a mean cosine to fp32 of at least 0.9900 over 300 texts, but found 0.9500, which is off by 0.0400; build with `--precision fp32`, or change the recipe's floor"
        );
        assert!(require(&quality(0.995, 0.96), &floor).is_err());
        assert!(require(&quality(f32::NAN, f32::NAN), &floor).is_err());
        let scores =
            |agreement, mean_difference| Quality::Classification { texts: 300, agreement, mean_difference };
        assert!(require(&scores(0.995, 0.005), &floor).is_ok());
        assert!(require(&scores(0.98, 0.005), &floor).is_err());
        assert!(require(&scores(1.0, 0.02), &floor).is_err());
    }

    #[test]
    fn the_sentences_are_many_and_of_mixed_length() {
        let lengths: Vec<usize> = SENTENCES.lines().map(str::len).collect();
        assert!(lengths.len() >= 200);
        assert!(lengths.iter().any(|length| *length < 20) && lengths.iter().any(|length| *length > 800));
    }
}
