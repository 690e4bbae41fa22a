//! The quality of an encoder: the vectors or scores of both forms, compared text by text.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::SENTENCES;
use crate::{
    backend::{
        Engine, Signature, TensorSpec,
        native::{NativeModel, TableModel, WeightFiles},
        onnx::{Runtime, Session},
    },
    build::{
        cost::Comparison,
        files,
        plan::Progress,
        source::{EncoderSettings, MODEL},
    },
    error::{Error, Result},
    pipeline::{
        pooling::cosine,
        scores::{descending, softmax},
    },
    repository::manifest::{Neighbours, Quality},
    tensor::Tensor,
    tokenizer::{Encoding, Side, Tokenizer, Truncation, Window, WindowOptions},
};

/// The answers of both forms for one text, and their times.
type Answers = [(Vec<f32>, Duration); 2];

/// The vectors or the scores of the sample texts.
pub(in crate::build) type Outputs = Vec<Vec<f32>>;

/// An encoder's graph in an engine.
pub(in crate::build) enum EncoderModel {
    Native(NativeModel),
    Table(TableModel),
    Onnx(Session),
}

impl EncoderModel {
    /// Opens the graph in `folder`.
    pub(in crate::build) fn open(runtime: Runtime, folder: &Path, engine: Engine) -> Result<Self> {
        let path = folder.join(MODEL);
        if engine == Engine::Onnx {
            return Session::open(runtime, &path, NonZeroUsize::MIN).map(Self::Onnx);
        }
        let graph = files::read(&path)?;
        let weights = WeightFiles::names(&graph)?.into_iter().map(|name| (name.clone(), folder.join(name)));
        let weights = WeightFiles::map(weights, Arc::default())?;
        match TableModel::is_in(&graph)? {
            true => TableModel::open(&graph, weights).map(Self::Table),
            false => NativeModel::open(&graph, weights).map(Self::Native),
        }
    }

    fn signature(&self) -> &Signature {
        match self {
            Self::Native(model) => model.signature(),
            Self::Table(model) => model.signature(),
            Self::Onnx(session) => session.signature(),
        }
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match self {
            Self::Native(model) => model.run(inputs),
            Self::Table(model) => model.run(inputs),
            Self::Onnx(session) => session.run(inputs),
        }
    }
}

/// Runs all sample texts through two models, in fp32 and quantised, of the given sizes in bytes. Returns their quality
/// and cost, and the vectors or scores of the second.
pub(in crate::build) fn measure(
    models: [&EncoderModel; 2],
    bytes: [u64; 2],
    tokenizer: &Tokenizer,
    settings: &EncoderSettings,
    progress: &dyn Progress,
) -> Result<((Quality, Comparison), Outputs)> {
    progress.stage("measure the quality", SENTENCES.lines().count());
    let encodings =
        SENTENCES.lines().map(|text| encode(text, tokenizer, settings)).collect::<Result<Vec<_>>>()?;
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let work = |worker: usize| -> Result<Vec<Answers>> {
        let own = encodings.iter().skip(worker).step_by(workers);
        own.map(|encoding| {
            let timed = |model| {
                let started = Instant::now();
                Ok::<_, Error>((answer(settings, model, encoding)?, started.elapsed()))
            };
            let answers = [timed(models[0])?, timed(models[1])?];
            progress.step();
            Ok(answers)
        })
        .collect()
    };
    let work = &work;
    let parts = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        let panicked = || Err(Error::model("measuring the quality panicked"));
        let parts = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| panicked()));
        parts.collect::<Result<Vec<_>>>()
    })?;
    // In the order of the texts, since the order of a sum changes its rounding.
    let answers: Vec<&Answers> =
        (0..encodings.len()).filter_map(|text| parts[text % workers].get(text / workers)).collect();
    let time = |form: usize| answers.iter().map(|answers| answers[form].1).sum();
    let comparison = Comparison::new(bytes, [time(0), time(1)], answers.len() * workers);
    let quality = compare(settings, &answers);
    let built = answers.iter().map(|[_, (built, _)]| built.clone()).collect();
    Ok(((quality, comparison), built))
}

/// Runs one text through a model, which must return as many values as `settings` say.
pub(in crate::build) fn check(
    model: &EncoderModel,
    tokenizer: &Tokenizer,
    settings: &EncoderSettings,
) -> Result<()> {
    let text = SENTENCES.lines().next().unwrap_or_default();
    let window = encode(text, tokenizer, settings)?;
    let found = answer(settings, model, &window)?.len();
    let (_, _, values) = settings.shape();
    let expected = match settings {
        EncoderSettings::TokenClassification(_) => values * window.spans.iter().flatten().count(),
        EncoderSettings::Embedding(_) | EncoderSettings::Classification(_) => values,
    };
    if found != expected {
        return Err(Error::model(format!(
            "expected {expected} values, as in `config.json`, but found {found}"
        )));
    }
    Ok(())
}

fn encode(text: &str, tokenizer: &Tokenizer, settings: &EncoderSettings) -> Result<Window> {
    let (_, max_tokens, _) = settings.shape();
    let options = WindowOptions { stride: None, truncation: Truncation::At(Side::Right), max_windows: 1 };
    let window = tokenizer.windows(text, max_tokens, options)?.pop();
    window.ok_or_else(|| Error::model("expected a window of a text, but found none"))
}

/// The vector or the scores of one text.
pub(in crate::build) fn vector_of(
    text: &str,
    model: &EncoderModel,
    tokenizer: &Tokenizer,
    settings: &EncoderSettings,
) -> Result<Vec<f32>> {
    answer(settings, model, &encode(text, tokenizer, settings)?)
}

/// The vector or the scores of one text, or the scores of each of its tokens, without special tokens.
fn answer(settings: &EncoderSettings, session: &EncoderModel, window: &Window) -> Result<Vec<f32>> {
    let (name, ..) = settings.shape();
    let outputs = session.run(&inputs(session.signature(), &window.encoding)?)?;
    let output = session.signature().output(name).and_then(|place| outputs.get(place));
    let found = output.and_then(|output| Some((output.as_fp32()?, *output.shape().last()?)));
    let Some((values, width)) = found else {
        return Err(Error::model(format!("expected the float output `{name}`, but found none")));
    };
    Ok(match settings {
        EncoderSettings::Embedding(settings) => settings.pooling.pool(values, width),
        EncoderSettings::Classification(settings) => settings.function.apply(values),
        EncoderSettings::TokenClassification(_) => {
            let tokens = values.chunks_exact(width).zip(&window.spans);
            tokens.filter(|(_, span)| span.is_some()).flat_map(|(logits, _)| softmax(logits)).collect()
        }
    })
}

fn compare(settings: &EncoderSettings, answers: &[&Answers]) -> Quality {
    let texts = answers.len();
    let pairs = || answers.iter().map(|[left, right]| (&left.0[..], &right.0[..]));
    let mean = |sum: f32| sum / texts.max(1) as f32;
    match settings {
        EncoderSettings::Embedding(_) => {
            let cosines: Vec<f32> = pairs().map(|(left, right)| cosine(left, right)).collect();
            Quality::Embedding {
                texts,
                mean_cosine: mean(cosines.iter().sum()),
                worst_cosine: cosines.iter().copied().min_by(f32::total_cmp).unwrap_or(f32::NAN),
                neighbours: Some(neighbours(&pairs().unzip::<_, _, Vec<_>, Vec<_>>().into())),
            }
        }
        EncoderSettings::Classification(_) => {
            let agree = |(left, right): &(&[f32], &[f32])| descending(left)[0] == descending(right)[0];
            let difference = |(left, right): (&[f32], &[f32])| {
                let differences = left.iter().zip(right).map(|(left, right)| (left - right).abs());
                differences.sum::<f32>() / left.len().max(1) as f32
            };
            Quality::Classification {
                texts,
                agreement: mean(pairs().filter(agree).count() as f32),
                mean_difference: mean(pairs().map(difference).sum()),
            }
        }
        EncoderSettings::TokenClassification(settings) => {
            let width = settings.labels.len();
            let tokens =
                || pairs().flat_map(|(left, right)| left.chunks_exact(width).zip(right.chunks_exact(width)));
            let count = tokens().count();
            let agreeing = tokens().filter(|(left, right)| descending(left)[0] == descending(right)[0]);
            let differences = || {
                let scores = pairs().flat_map(|(left, right)| left.iter().zip(right));
                scores.map(|(left, right)| (left - right).abs())
            };
            let share = |sum: f64, of: usize| (sum / of.max(1) as f64) as f32;
            Quality::TokenClassification {
                texts,
                tokens: count,
                agreement: share(agreeing.count() as f64, count),
                mean_difference: share(differences().map(f64::from).sum(), count * width),
                worst_difference: differences().fold(0.0, f32::max),
            }
        }
    }
}

/// Compares the nearest texts of each text in both forms, whose vectors are in the same order.
fn neighbours(forms: &[Vec<&[f32]>; 2]) -> Neighbours {
    let texts = forms[0].len().max(1) as f32;
    let (mut kept, mut expected, mut same) = (0, 0, 0);
    for text in 0..forms[0].len() {
        let [reference, found] = forms.each_ref().map(|vectors| nearest(vectors, text, cosine));
        kept += reference.iter().filter(|other| found.contains(other)).count();
        expected += reference.len();
        same += usize::from(reference.first() == found.first());
    }
    Neighbours { ten_nearest: kept as f32 / expected.max(1) as f32, nearest: same as f32 / texts }
}

/// The ten other texts whose vectors are most similar to that of `text`, the most similar first.
pub(in crate::build) fn nearest<V: ?Sized>(
    vectors: &[&V],
    text: usize,
    similarity: impl Fn(&V, &V) -> f32,
) -> Vec<usize> {
    let similarities: Vec<f32> = vectors.iter().map(|other| similarity(vectors[text], other)).collect();
    let mut others: Vec<usize> = (0..vectors.len()).filter(|other| *other != text).collect();
    others.sort_by(|left, right| similarities[*right].total_cmp(&similarities[*left]));
    others.truncate(10);
    others
}

/// The inputs of a graph for one text.
pub fn inputs(signature: &Signature, encoding: &Encoding) -> Result<Vec<Tensor>> {
    let shape = [1, encoding.len()];
    let tensor = |input: &TensorSpec| {
        let values = match input.name.as_str() {
            "input_ids" => encoding.ids.iter().map(|id| i64::from(*id)).collect(),
            "token_type_ids" => encoding.type_ids.iter().map(|id| i64::from(*id)).collect(),
            "attention_mask" => vec![1; encoding.len()],
            other => {
                return Err(Error::model(format!(
                    "expected inputs among `input_ids`, `attention_mask`, `token_type_ids`, but found `{other}`"
                )));
            }
        };
        Tensor::integers(input.element_type, shape, values)
    };
    signature.inputs.iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_compared_text_by_text() {
        let angles = |angles: [f32; 13]| angles.map(|angle| [angle.cos(), angle.sin()]);
        let vectors =
            |points: &[[f32; 2]; 13]| -> Vec<Vec<f32>> { points.iter().map(|it| it.to_vec()).collect() };
        let steps: [f32; 13] = std::array::from_fn(|step| step as f32 / 10.0);
        let reference = vectors(&angles(steps));
        let mut moved = steps;
        // The first text, with the ten after it as its neighbours, changes places with the last.
        moved.swap(0, 12);
        let moved = vectors(&angles(moved));
        let views = |vectors: &'_ [Vec<f32>]| -> Vec<Vec<f32>> { vectors.to_vec() };
        let compared = |left: &[Vec<f32>], right: &[Vec<f32>]| {
            neighbours(&[left, right].map(|vectors| vectors.iter().map(Vec::as_slice).collect()))
        };
        assert_eq!(compared(&reference, &views(&reference)), Neighbours { ten_nearest: 1.0, nearest: 1.0 });
        let found = compared(&reference, &moved);
        // 1, 2, 10 and 11 lose a neighbour each: the text that moved away.
        assert!(found.ten_nearest < 1.0 && found.nearest < 1.0, "{found:?}");
    }

    #[test]
    fn the_sentences_are_many_and_of_mixed_length() {
        let lengths: Vec<usize> = SENTENCES.lines().map(str::len).collect();
        assert!(lengths.len() >= 200);
        assert!(lengths.iter().any(|length| *length < 20) && lengths.iter().any(|length| *length > 800));
    }
}
