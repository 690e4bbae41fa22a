//! Encoder quality: both forms' vectors or scores, compared text by text.

use std::{num::NonZeroUsize, thread, time::Instant};

use super::{
    SENTENCES,
    answer::{Answer, LABELS, MultiVectors},
    compare::{Answers, compare},
    model::EncoderModel,
};
use crate::{cost::Comparison, plan::Progress, source::EncoderSettings};
use kivu::{
    error::{Error, Result},
    pipeline::{
        roles::TextRole,
        scores::{ScoreFunction, softmax},
    },
    repository::manifest::Quality,
    tokenizer::{Encoding, Side, Tokenizer, Truncation, Window, WindowOptions},
};

/// Vectors or scores for the sample texts.
pub(crate) type Outputs = Vec<Vec<f32>>;

/// Runs all sample texts through two models, fp32 and quantized, with the given sizes in bytes. Returns each output's
/// quality, the cost, and the second model's dense vectors or scores.
pub(crate) fn measure(
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
    // In text order, since the order changes a sum's rounding.
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
pub(crate) fn check(model: &EncoderModel, tokenizer: &Tokenizer, settings: &EncoderSettings) -> Result<()> {
    let text = SENTENCES.lines().next().unwrap_or_default();
    let sample = Sample::new(text, tokenizer, settings)?;
    let found = answer(settings, model, &sample)?;
    // Other outputs have as many values as there are tokens, or words in the vocabulary.
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
        let options = WindowOptions { stride: None, truncation, max_windows: 1, begin_at_words: false };
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

/// One text's dense vector.
pub(crate) fn vector_of(
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

/// One text's vectors at each output, or its scores, or token scores without special tokens.
fn answer(settings: &EncoderSettings, model: &EncoderModel, sample: &Sample) -> Result<Vec<Answer>> {
    let encoding = &sample.window.encoding;
    let outputs = model.run(encoding)?;
    let read = |name: &str, width| model.values(&outputs, name, width);
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
            // Without spans that end beyond the text.
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
                    let outputs = model.run(query)?;
                    let values = model.values(&outputs, &multi.output, width)?;
                    Ok::<_, Error>(multi.vectors(TextRole::Query, &query.ids, values, true))
                };
                let query = sample.query.as_ref().map(of_query).transpose()?;
                answers.push(Answer::MultiVector(MultiVectors { document, query, width }));
            }
            Ok(answers)
        }
    }
}
