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
        native::{NativeModel, Query, TableModel, WeightFiles},
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
        roles::TextRole,
        scores::{ScoreFunction, descending, softmax},
        sparse::SparseVector,
        zero_shot_entities::THRESHOLD,
    },
    repository::manifest::{Neighbours, Quality},
    tensor::Tensor,
    tokenizer::{Encoding, Side, Tokenizer, Truncation, Window, WindowOptions},
};

/// The answers of both forms for one text, and their times.
type Answers = [(Vec<Answer>, Duration); 2];

/// The result of a model for a text, at one of its outputs.
#[derive(Clone, Debug)]
enum Answer {
    /// A dense vector, or the scores of labels.
    Vector(Vec<f32>),
    Sparse(SparseVector),
    MultiVector(MultiVectors),
}

/// The vectors of a text for late interaction, of length 1, each with `width` values.
#[derive(Clone, Debug)]
struct MultiVectors {
    document: Vec<f32>,
    /// None if queries have the form of documents.
    query: Option<Vec<f32>>,
    width: usize,
}

impl MultiVectors {
    fn query(&self) -> &[f32] {
        self.query.as_deref().unwrap_or(&self.document)
    }

    /// The mean of the cosines with the vectors of another model for the same text.
    fn cosine(&self, other: &Self) -> f32 {
        let all = |vectors: &Self| {
            [vectors.document.as_slice(), vectors.query.as_deref().unwrap_or_default()].concat()
        };
        let (left, right) = (all(self), all(other));
        if left.len() == right.len() { cosine(&left, &right) } else { f32::NAN }
    }
}

impl Answer {
    /// A dense vector, or scores; nothing of other outputs.
    fn values(&self) -> &[f32] {
        match self {
            Self::Vector(values) => values,
            Self::Sparse(_) | Self::MultiVector(_) => &[],
        }
    }

    /// The cosine with the same output of another model for the same text; of multi-vectors, the mean of their cosines.
    fn cosine(&self, other: &Self) -> f32 {
        match (self, other) {
            (Self::Vector(left), Self::Vector(right)) if left.len() == right.len() => cosine(left, right),
            (Self::MultiVector(left), Self::MultiVector(right)) => left.cosine(right),
            (Self::Sparse(left), Self::Sparse(right)) => {
                let lengths = (left.dot(left) * right.dot(right)).sqrt();
                if lengths > 0.0 { left.dot(right) / lengths } else { f32::from(u8::from(left == right)) }
            }
            _ => f32::NAN,
        }
    }

    /// The similarity to the same output for each of other texts, as a search ranks them: the cosine of dense vectors, the
    /// product of sparse ones, and the mean of the largest products of the vectors of this text as a query.
    fn similarities(&self, others: &[&Self]) -> Vec<f32> {
        let similarity: Box<dyn Fn(&Self) -> f32> = match self {
            Self::Vector(_) => Box::new(|other| self.cosine(other)),
            Self::Sparse(own) => {
                let mut weights = vec![0.0; own.0.last().map_or(0, |(id, _)| *id as usize + 1)];
                own.0.iter().for_each(|(id, weight)| weights[*id as usize] = *weight);
                let product = move |(id, weight): &(u32, f32)| {
                    weights.get(*id as usize).map_or(0.0, |own| own * weight)
                };
                Box::new(move |other| match other {
                    Self::Sparse(other) => other.0.iter().map(&product).sum(),
                    _ => f32::NAN,
                })
            }
            Self::MultiVector(own) => {
                let query = Query::new(own.query(), own.width);
                Box::new(move |other| match other {
                    Self::MultiVector(other) => {
                        let largest = query.largest_products(&other.document);
                        largest.iter().sum::<f32>() / largest.len().max(1) as f32
                    }
                    _ => f32::NAN,
                })
            }
        };
        others.iter().map(|other| similarity(other)).collect()
    }

    /// The share of the ten tokens with the largest weights that are the same in both, for sparse vectors.
    fn terms_kept(&self, other: &Self) -> Option<f32> {
        let (Self::Sparse(left), Self::Sparse(right)) = (self, other) else { return None };
        let [left, right] = [left, right].map(|vector| vector.clone().truncated(10).0);
        let kept = left.iter().filter(|(id, _)| right.iter().any(|(other, _)| other == id)).count();
        Some(if left.is_empty() { 1.0 } else { kept as f32 / left.len() as f32 })
    }
}

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

/// The labels of entities in the sample texts.
const LABELS: [&str; 8] =
    ["person", "organization", "location", "date", "product", "event", "email address", "phone number"];

/// Runs all sample texts through two models, in fp32 and quantized, of the given sizes in bytes. Returns the quality of
/// each output and the cost, and the dense vectors or scores of the second.
pub(in crate::build) fn measure(
    models: [&EncoderModel; 2],
    bytes: [u64; 2],
    tokenizer: &Tokenizer,
    settings: &EncoderSettings,
    progress: &dyn Progress,
) -> Result<((Vec<Quality>, Comparison), Outputs)> {
    progress.stage("measure the quality", SENTENCES.lines().count());
    let samples =
        SENTENCES.lines().map(|text| Sample::new(text, tokenizer, settings)).collect::<Result<Vec<_>>>()?;
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let work = |worker: usize| -> Result<Vec<Answers>> {
        let own = samples.iter().skip(worker).step_by(workers);
        own.map(|sample| {
            let timed = |model| {
                let started = Instant::now();
                Ok::<_, Error>((answer(settings, model, sample)?, started.elapsed()))
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
        (0..samples.len()).filter_map(|text| parts[text % workers].get(text / workers)).collect();
    let time = |form: usize| answers.iter().map(|answers| answers[form].1).sum();
    let runs: usize = samples.iter().map(|sample| 1 + usize::from(sample.query.is_some())).sum();
    let comparison = Comparison::new(bytes, [time(0), time(1)], runs * workers);
    let outputs = answers.first().map_or(0, |[reference, _]| reference.0.len());
    let qualities = (0..outputs).map(|output| compare(settings, &answers, output)).collect();
    let built = answers.iter().map(|[_, (built, _)]| built[0].values().to_vec()).collect();
    Ok(((qualities, comparison), built))
}

/// Runs one text through a model, which must return as many values as `settings` say.
pub(in crate::build) fn check(
    model: &EncoderModel,
    tokenizer: &Tokenizer,
    settings: &EncoderSettings,
) -> Result<()> {
    let text = SENTENCES.lines().next().unwrap_or_default();
    let sample = Sample::new(text, tokenizer, settings)?;
    let found = answer(settings, model, &sample)?;
    // The number of values of other outputs is that of tokens or of the vocabulary.
    if let (EncoderSettings::TokenClassification(settings), [Answer::Vector(found)]) = (settings, &found[..])
        && found.len() != settings.labels.len() * sample.window.spans.iter().flatten().count()
    {
        return Err(Error::model(format!(
            "expected {} values for each token, as in `config.json`, but found {} values",
            settings.labels.len(),
            found.len()
        )));
    }
    Ok(())
}

/// A sample text as a model reads it.
struct Sample {
    window: Window,
    /// As a query, if the model has another form for queries.
    query: Option<Encoding>,
}

impl Sample {
    fn new(text: &str, tokenizer: &Tokenizer, settings: &EncoderSettings) -> Result<Self> {
        let (limit, truncation) = (settings.max_tokens(), Truncation::At(Side::Right));
        if let EncoderSettings::Embedding(settings) = settings
            && let Some(multi) = &settings.multi_vector
            && multi.query != multi.document
        {
            let encode = |role: TextRole| {
                let prompt = settings.prompt(Some(role.name()))?.unwrap_or_default();
                multi.role(role).encode(tokenizer, &format!("{prompt}{text}"), limit, truncation)
            };
            let encoding = encode(TextRole::Document)?;
            let window = Window { encoding, spans: Vec::new() };
            return Ok(Self { window, query: Some(encode(TextRole::Query)?) });
        }
        let options = WindowOptions { stride: None, truncation, max_windows: 1 };
        let windows = match settings {
            EncoderSettings::ZeroShotEntities(settings) => {
                let prompt = settings.prompt(&LABELS.map(str::to_owned), tokenizer)?;
                tokenizer.word_windows(text, &prompt, limit, options)
            }
            _ => tokenizer.windows(text, limit, options),
        };
        let window = windows?.pop();
        let window = window.ok_or_else(|| Error::model("expected a window of a text, but found none"))?;
        Ok(Self { window, query: None })
    }
}

/// The dense vector of one text.
pub(in crate::build) fn vector_of(
    text: &str,
    model: &EncoderModel,
    tokenizer: &Tokenizer,
    settings: &EncoderSettings,
) -> Result<Vec<f32>> {
    match answer(settings, model, &Sample::new(text, tokenizer, settings)?)?.into_iter().next() {
        Some(Answer::Vector(vector)) => Ok(vector),
        _ => Err(Error::model("expected a model with dense vectors, but found one without")),
    }
}

/// The vectors of one text at each output, or its scores, or those of its tokens, without special tokens.
fn answer(settings: &EncoderSettings, model: &EncoderModel, sample: &Sample) -> Result<Vec<Answer>> {
    let encoding = &sample.window.encoding;
    let outputs = model.run(&inputs(model.signature(), encoding)?)?;
    let read = |name: &str, width| read(model, &outputs, name, width);
    match settings {
        EncoderSettings::Classification(settings) => {
            let values = read(&settings.output, settings.labels.len())?;
            Ok(vec![Answer::Vector(settings.function.apply(values))])
        }
        EncoderSettings::TokenClassification(settings) => {
            let width = settings.labels.len();
            let tokens = read(&settings.output, width)?.chunks_exact(width).zip(&sample.window.spans);
            let scores = tokens.filter(|(_, span)| span.is_some()).flat_map(|(logits, _)| softmax(logits));
            Ok(vec![Answer::Vector(scores.collect())])
        }
        EncoderSettings::ZeroShotEntities(settings) => {
            let longest = settings.max_entity_words;
            let words = read(&settings.output, longest)?.chunks_exact(LABELS.len() * longest);
            // Without the spans that end beyond the text.
            let valid = words.take(sample.window.spans.len()).enumerate().flat_map(|(first, values)| {
                let count = longest.min(sample.window.spans.len() - first);
                values.chunks_exact(longest).flat_map(move |lengths| &lengths[..count])
            });
            let logits: Vec<f32> = valid.copied().collect();
            Ok(vec![Answer::Vector(ScoreFunction::Sigmoid.apply(&logits))])
        }
        EncoderSettings::Embedding(settings) => {
            let mut answers = Vec::new();
            if let Some(dense) = &settings.dense {
                let values = read(&dense.output, dense.dimensions)?;
                answers.push(Answer::Vector(dense.pooling.pool(values, dense.dimensions)));
            }
            if let Some(sparse) = &settings.sparse {
                let values = read(&sparse.output, sparse.width())?;
                answers.push(Answer::Sparse(sparse.vector(&encoding.ids, values)));
            }
            if let Some(multi) = &settings.multi_vector {
                let width = multi.dimensions;
                let document =
                    multi.vectors(TextRole::Document, &encoding.ids, read(&multi.output, width)?, true);
                let of_query = |query: &Encoding| {
                    let outputs = model.run(&inputs(model.signature(), query)?)?;
                    let values = self::read(model, &outputs, &multi.output, width)?;
                    Ok::<_, Error>(multi.vectors(TextRole::Query, &query.ids, values, true))
                };
                let query = sample.query.as_ref().map(of_query).transpose()?;
                answers.push(Answer::MultiVector(MultiVectors { document, query, width }));
            }
            Ok(answers)
        }
    }
}

/// The values of the output called `name`, of the given width, among the outputs of a model.
fn read<'a>(model: &EncoderModel, outputs: &'a [Tensor], name: &str, expected: usize) -> Result<&'a [f32]> {
    let output = model.signature().output(name).and_then(|place| outputs.get(place));
    let found = output.and_then(|output| Some((output.as_fp32()?, *output.shape().last()?)));
    match found {
        Some((values, width)) if width == expected => Ok(values),
        Some((_, found)) => Err(Error::model(format!(
            "expected {expected} values in `{name}`, as in `config.json`, but found {found}"
        ))),
        None => Err(Error::model(format!("expected the float output `{name}`, but found none"))),
    }
}

/// The quality of the output at a place.
fn compare(settings: &EncoderSettings, answers: &[&Answers], output: usize) -> Quality {
    let texts = answers.len();
    let pairs = || answers.iter().map(|[left, right]| (&left.0[output], &right.0[output]));
    let mean = |sum: f32| sum / texts.max(1) as f32;
    match settings {
        EncoderSettings::Embedding(_) => {
            let cosines: Vec<f32> = pairs().map(|(left, right)| left.cosine(right)).collect();
            let terms: Option<f32> = pairs().map(|(left, right)| left.terms_kept(right)).sum();
            let forms: [Vec<&Answer>; 2] = pairs().unzip::<_, _, Vec<_>, Vec<_>>().into();
            let similarities = forms.each_ref().map(|answers| similarities(answers));
            let is_scored = matches!(forms[0].first(), Some(Answer::MultiVector(_)));
            Quality::Embedding {
                texts,
                mean_cosine: mean(cosines.iter().sum()),
                worst_cosine: cosines.iter().copied().min_by(f32::total_cmp).unwrap_or(f32::NAN),
                neighbours: Some(neighbours(&similarities)),
                terms: terms.map(mean),
                score_difference: is_scored.then(|| score_difference(&similarities)),
            }
        }
        EncoderSettings::Classification(_) => {
            let agree = |(left, right): &(&Answer, &Answer)| {
                descending(left.values()).first() == descending(right.values()).first()
            };
            let difference = |(left, right): (&Answer, &Answer)| {
                let (left, right) = (left.values(), right.values());
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
            let pairs = || pairs().map(|(left, right)| (left.values(), right.values()));
            let tokens =
                || pairs().flat_map(|(left, right)| left.chunks_exact(width).zip(right.chunks_exact(width)));
            let count = tokens().count();
            let agreeing = tokens().filter(|(left, right)| descending(left)[0] == descending(right)[0]);
            let [mean_difference, worst_difference] = differences(pairs());
            Quality::TokenClassification {
                texts,
                tokens: count,
                agreement: (agreeing.count() as f64 / count.max(1) as f64) as f32,
                mean_difference,
                worst_difference,
            }
        }
        EncoderSettings::ZeroShotEntities(_) => {
            let pairs = || pairs().map(|(left, right)| (left.values(), right.values()));
            let scores = || pairs().flat_map(|(left, right)| left.iter().zip(right));
            // Those that requests get by default, if none excludes another.
            let is_entity = |score: &f32| *score > THRESHOLD;
            let common = scores().filter(|(left, right)| is_entity(left) && is_entity(right)).count();
            let found =
                scores().map(|(left, right)| [left, right].into_iter().filter(|it| is_entity(it)).count());
            let [mean_difference, worst_difference] = differences(pairs());
            Quality::ZeroShotEntities {
                texts,
                spans: scores().count() / LABELS.len(),
                agreement: match found.sum::<usize>() {
                    0 => 1.0,
                    found => 2.0 * common as f32 / found as f32,
                },
                mean_difference,
                worst_difference,
            }
        }
    }
}

/// The mean and the largest difference between the scores of both forms.
fn differences<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> [f32; 2] {
    let (mut sum, mut count, mut largest) = (0.0, 0_usize, 0.0_f32);
    for (left, right) in pairs.flat_map(|(left, right)| left.iter().zip(right)) {
        let difference = (left - right).abs();
        sum += f64::from(difference);
        count += 1;
        largest = largest.max(difference);
    }
    [(sum / count.max(1) as f64) as f32, largest]
}

/// The similarities of each text to all texts.
fn similarities(answers: &[&Answer]) -> Vec<Vec<f32>> {
    answers.iter().map(|answer| answer.similarities(answers)).collect()
}

/// The mean difference between the similarities of both forms.
fn score_difference([reference, found]: &[Vec<Vec<f32>>; 2]) -> f32 {
    let rows = reference.iter().zip(found);
    differences(rows.map(|(left, right)| (left.as_slice(), right.as_slice())))[0]
}

/// Compares the nearest texts of each text in both forms, by its similarities to all texts.
fn neighbours(forms: &[Vec<Vec<f32>>; 2]) -> Neighbours {
    let texts = forms[0].len().max(1) as f32;
    let (mut kept, mut expected, mut same) = (0, 0, 0);
    for text in 0..forms[0].len() {
        let [reference, found] = forms.each_ref().map(|rows| nearest(&rows[text], text));
        kept += reference.iter().filter(|other| found.contains(other)).count();
        expected += reference.len();
        same += usize::from(reference.first() == found.first());
    }
    Neighbours { ten_nearest: kept as f32 / expected.max(1) as f32, nearest: same as f32 / texts }
}

/// The ten other texts that are most similar to `text` by its similarities to all texts, the most similar first.
pub(in crate::build) fn nearest(similarities: &[f32], text: usize) -> Vec<usize> {
    let mut others: Vec<usize> = (0..similarities.len()).filter(|other| *other != text).collect();
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
            "token_type_ids" | "words_mask" => encoding.type_ids.iter().map(|id| i64::from(*id)).collect(),
            "attention_mask" => {
                let attended = encoding.len() - encoding.unattended;
                (0..encoding.len()).map(|token| i64::from(token < attended)).collect()
            }
            other => {
                return Err(Error::model(format!(
                    "expected inputs among `input_ids`, `attention_mask`, `token_type_ids`, `words_mask`, but found \
                     `{other}`"
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
        let vectors = |points: &[[f32; 2]; 13]| -> Vec<Answer> {
            points.iter().map(|point| Answer::Vector(point.to_vec())).collect()
        };
        let steps: [f32; 13] = std::array::from_fn(|step| step as f32 / 10.0);
        let reference = vectors(&angles(steps));
        let mut moved = steps;
        // The first text, with the ten after it as its neighbours, changes places with the last.
        moved.swap(0, 12);
        let moved = vectors(&angles(moved));
        let compared = |left: &[Answer], right: &[Answer]| {
            neighbours(&[left, right].map(|answers| similarities(&answers.iter().collect::<Vec<_>>())))
        };
        assert_eq!(compared(&reference, &reference.clone()), Neighbours { ten_nearest: 1.0, nearest: 1.0 });
        let found = compared(&reference, &moved);
        // 1, 2, 10 and 11 lose a neighbour each: the text that moved away.
        assert!(found.ten_nearest < 1.0 && found.nearest < 1.0, "{found:?}");
    }

    #[test]
    fn sparse_vectors_and_multi_vectors_are_compared() {
        let sparse = |entries: &[(u32, f32)]| Answer::Sparse(SparseVector(entries.to_vec()));
        let (left, right) = (sparse(&[(1, 3.0), (5, 4.0)]), sparse(&[(2, 3.0), (5, 4.0)]));
        assert!((left.cosine(&right) - 0.64).abs() < 1e-6);
        assert_eq!((left.terms_kept(&right), left.terms_kept(&left)), (Some(0.5), Some(1.0)));
        assert_eq!(sparse(&[]).cosine(&sparse(&[])), 1.0);
        assert_eq!(left.similarities(&[&left, &right, &sparse(&[(9, 1.0)])]), [25.0, 16.0, 0.0]);
        let multi = |document: &[f32], query: Option<&[f32]>| {
            let (document, query) = (document.to_vec(), query.map(<[f32]>::to_vec));
            Answer::MultiVector(MultiVectors { document, query, width: 2 })
        };
        let (left, right) = (multi(&[1.0, 0.0, 0.0, 1.0], None), multi(&[0.6, 0.8, 0.0, 1.0], None));
        assert!((left.cosine(&right) - 0.8).abs() < 1e-6);
        let found = left.similarities(&[&left, &right]);
        assert!((found[0] - 1.0).abs() < 1e-6 && (found[1] - 0.8).abs() < 1e-6, "{found:?}");
        // A query is compared with documents.
        let query = multi(&[1.0, 0.0], Some(&[0.0, 1.0, 0.6, 0.8]));
        assert!((query.similarities(&[&left])[0] - 0.9).abs() < 1e-6);
        let forms = [similarities(&[&left, &right]), similarities(&[&left, &left])];
        assert!((score_difference(&forms) - 0.075).abs() < 1e-6, "{forms:?}");
    }

    #[test]
    fn the_sentences_are_many_and_of_mixed_length() {
        let lengths: Vec<usize> = SENTENCES.lines().map(str::len).collect();
        assert!(lengths.len() >= 200);
        assert!(lengths.iter().any(|length| *length < 20) && lengths.iter().any(|length| *length > 800));
    }
}
