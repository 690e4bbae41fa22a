//! Tensors per task: token ids or texts in; floats, ids or texts out.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    message::{InferInput, InferRequest, InputElements, Output},
    seq2seq, token_classification, vectors,
};
use crate::{
    api::{app::App, classification::prepare_zero_shot, inputs as fields, inputs::TextLimit},
    backend::{Deadline, routing::Location},
    error::{Error, Result, quoted},
    model::{Model, Pipeline},
    pipeline::{Input, scores::ScoreFunction},
    repository::manifest::TensorNames,
    task::{
        classification::ClassificationParameters,
        entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
        ranking::RankingParameters,
    },
    tensor::Elements,
};

/// A tensor in a model's metadata.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct DeclaredTensor {
    datatype: &'static str,
    pub(super) name: String,
    shape: Vec<i64>,
}

impl DeclaredTensor {
    /// The tensor in a model's configuration.
    pub(super) fn configuration(&self) -> ConfiguredTensor {
        let data_type = if self.datatype == "BYTES" { "STRING" } else { self.datatype };
        ConfiguredTensor {
            data_type: format!("TYPE_{data_type}"),
            dims: self.shape.clone(),
            name: self.name.clone(),
        }
    }
}

/// A tensor in a model's configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ConfiguredTensor {
    data_type: String,
    dims: Vec<i64>,
    name: String,
}

/// A model's tensors, with the names in its manifest.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    /// All possible inputs; some exclude each other.
    pub(super) inputs: Vec<DeclaredTensor>,
    /// All possible outputs; a request's inputs determine which one it gets.
    pub(super) outputs: Vec<DeclaredTensor>,
    names: TensorNames,
}

impl Interface {
    pub(super) fn of(model: &Model) -> Self {
        let names = model.manifest.tensors.clone();
        let spec = |name: &str, datatype, shape: &[i64]| DeclaredTensor {
            name: name.into(),
            datatype,
            shape: shape.into(),
        };
        let text = spec(&names.text, "BYTES", &[-1, 1]);
        let tokens = [spec(&names.ids, "INT64", &[-1, -1]), spec(&names.mask, "INT64", &[-1, -1])];
        let output_name = |default: &str| names.output.clone().unwrap_or_else(|| default.into());
        let floats = |default: &str, shape: &[i64]| vec![spec(&output_name(default), "FP32", shape)];
        let (inputs, outputs) = match &model.pipeline {
            Pipeline::Embedding(pipeline) => {
                let outputs = vectors::outputs(pipeline, names.output.as_deref());
                let outputs = outputs.into_iter().map(|(name, datatype, shape)| spec(name, datatype, &shape));
                ([&tokens[..], &[text]].concat(), outputs.collect())
            }
            Pipeline::Classification(pipeline) => {
                let labels = pipeline.settings().labels.len() as i64;
                ([&tokens[..], &[text]].concat(), floats("logits", &[-1, labels]))
            }
            Pipeline::TokenClassification(pipeline) => {
                let labels = pipeline.settings().labels.len() as i64;
                let logits = spec(&output_name(token_classification::LOGITS), "FP32", &[-1, -1, labels]);
                let entities = spec(&output_name(token_classification::ENTITIES), "BYTES", &[-1, 1]);
                ([&tokens[..], &[text]].concat(), vec![logits, entities])
            }
            Pipeline::ZeroShotEntities(_) => {
                let entities = spec(&output_name(token_classification::ENTITIES), "BYTES", &[-1, 1]);
                (vec![text, spec(&names.labels, "BYTES", &[-1])], vec![entities])
            }
            Pipeline::ZeroShot(_) => {
                (vec![text, spec(&names.labels, "BYTES", &[-1])], floats("scores", &[-1, -1]))
            }
            Pipeline::Ranking(_) => (vec![spec(&names.query, "BYTES", &[1]), text], floats("scores", &[-1])),
            Pipeline::Translation(_) | Pipeline::TextToText(_) => {
                let ids = spec(&output_name(seq2seq::IDS), "INT64", &[-1, -1]);
                let texts = spec(&output_name(model.manifest.task.generated_name()), "BYTES", &[-1, -1]);
                ([&tokens[..], &[text]].concat(), vec![ids, texts])
            }
        };
        Self { inputs, outputs, names }
    }

    /// Output names for a request: for an embedding model, any that it names; for other models, the last one for texts,
    /// the first one for ids.
    fn requested<'a>(&'a self, pipeline: &Pipeline, request: &'a InferRequest) -> Result<Vec<&'a str>> {
        let known: Vec<&str> = self.outputs.iter().map(|output| output.name.as_str()).collect();
        if let Pipeline::Embedding(pipeline) = pipeline {
            return request.requested(&known, &vectors::by_default(pipeline, &known));
        }
        let of_texts = request.input(&self.names.text).is_some();
        let only = if of_texts { known.last() } else { known.first() };
        let only: Vec<&str> = only.copied().into_iter().collect();
        request.requested(&only, &only)
    }

    fn check_names(&self, request: &InferRequest) -> Result<()> {
        let known: Vec<&str> = self.inputs.iter().map(|input| input.name.as_str()).collect();
        match request.inputs.iter().find(|input| !known.contains(&input.name.as_str())) {
            None => Ok(()),
            Some(input) => Err(Error::invalid(format!(
                "expected inputs among {}, but found `{}`",
                quoted(&known),
                input.name.escape_default()
            ))),
        }
    }
}

/// Runs a model on a request's inputs, and returns the requested outputs.
pub(super) async fn run<'a>(
    app: &App,
    model: &Model,
    interface: &'a Interface,
    request: &'a InferRequest,
    deadline: Deadline,
) -> Result<Vec<(&'a str, Output)>> {
    let outputs = interface.requested(&model.pipeline, request)?;
    outputs.iter().try_for_each(|name| request.is_binary_requested(name).map(drop))?;
    interface.check_names(request)?;
    let (names, limit, scope) = (&interface.names, app.limits.texts, app.scope());
    let labelled = || -> Result<_> {
        let texts = texts(required(request, &names.text)?, limit)?;
        Ok((texts, labels(required(request, &names.labels)?, limit)?))
    };
    let output = match &model.pipeline {
        Pipeline::Embedding(pipeline) => {
            let inputs = rows(names, request, limit)?.into_inputs();
            return vectors::run(pipeline, (inputs, request), &outputs, (scope, deadline)).await;
        }
        Pipeline::Classification(pipeline) => {
            let inputs = rows(names, request, limit)?.into_inputs();
            let parameters = ClassificationParameters {
                function_to_apply: Some(ScoreFunction::None),
                top_k: None,
                ..request.task_parameters()?
            };
            let scores = parameters.prepare(pipeline, &scope)?.run(inputs, deadline).await?;
            Ok(matrix(scores.rows, scores.usage.location))
        }
        Pipeline::TokenClassification(pipeline) => {
            let rows = rows(names, request, limit)?;
            let parameters: TokenClassificationParameters = request.task_parameters()?;
            match rows {
                Rows::Tokens(rows) => {
                    let truncation = scope.truncation(parameters.truncate, parameters.truncation_direction);
                    token_classification::ids(pipeline, rows, (&app.limits, truncation), deadline).await
                }
                Rows::Texts(texts) => {
                    let finder = parameters.prepare(pipeline, &scope)?;
                    token_classification::json(&finder.run(texts, deadline).await?)
                }
            }
        }
        Pipeline::ZeroShotEntities(pipeline) => {
            let (texts, labels) = labelled()?;
            let parameters: ZeroShotEntitiesParameters = request.parameters_with(labels)?;
            let finder = parameters.prepare(pipeline, &scope)?;
            token_classification::json(&finder.run(texts, deadline).await?)
        }
        Pipeline::ZeroShot(pipeline) => {
            let (texts, labels) = labelled()?;
            let parameters = request.parameters_with(labels)?;
            let limits = (&TextLimit::new(limit), scope);
            let classifier = prepare_zero_shot(pipeline, texts.len(), &parameters, limits)?;
            let scores = classifier.run(&texts, deadline).await?;
            Ok(matrix(scores.rows, scores.usage.location))
        }
        Pipeline::Ranking(pipeline) => {
            let query = text(required(request, &names.query)?)?;
            let texts = texts(required(request, &names.text)?, limit)?;
            let parameters: RankingParameters = request.task_parameters()?;
            let (scores, usage) = parameters.prepare(pipeline, &scope).run(query, texts, deadline).await?;
            let shape = vec![scores.len()];
            Ok(Output { shape, elements: Elements::Fp32(scores), location: usage.location })
        }
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
            let options = seq2seq::options(request, &scope)?;
            match rows(names, request, limit)? {
                Rows::Tokens(rows) => seq2seq::ids(pipeline, rows, &options, deadline).await,
                Rows::Texts(texts) => seq2seq::texts(pipeline, texts, &options, deadline).await,
            }
        }
    };
    Ok(outputs.into_iter().zip([output?]).collect())
}

fn matrix(rows: Vec<Vec<f32>>, location: Location) -> Output {
    let shape = vec![rows.len(), rows.first().map_or(0, Vec::len)];
    Output { shape, elements: Elements::Fp32(rows.into_iter().flatten().collect()), location }
}

enum Rows {
    Tokens(Vec<Vec<u32>>),
    Texts(Vec<String>),
}

impl Rows {
    fn into_inputs(self) -> Vec<Input> {
        match self {
            Self::Tokens(rows) => rows.into_iter().map(Input::Ids).collect(),
            Self::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
        }
    }
}

/// Texts, or the token ids that the mask keeps.
fn rows(names: &TensorNames, request: &InferRequest, limit: usize) -> Result<Rows> {
    match (request.input(&names.text), request.input(&names.ids)) {
        (Some(text), None) => Ok(Rows::Texts(texts(text, limit)?)),
        (None, Some(ids)) => tokens(ids, request.input(&names.mask), limit).map(Rows::Tokens),
        (Some(_), Some(_)) => {
            Err(Error::invalid(format!("expected `{}` or `{}`, but found both", names.text, names.ids)))
        }
        (None, None) => {
            Err(Error::invalid(format!("expected `{}` or `{}`, but found neither", names.text, names.ids)))
        }
    }
}

fn required<'a>(request: &'a InferRequest, name: &str) -> Result<&'a InferInput> {
    request.input(name).ok_or_else(|| Error::invalid(format!("expected the input `{name}`, but found none")))
}

fn strings(input: &InferInput) -> Result<&[String]> {
    match &input.elements {
        InputElements::Texts(texts) => Ok(texts),
        InputElements::Integers(_) => {
            Err(Error::invalid(format!("expected `{}` as BYTES, but found integers", input.name)))
        }
    }
}

/// An input's only text.
fn text(input: &InferInput) -> Result<String> {
    let found = strings(input)?;
    match found {
        [text] if !text.is_empty() => Ok(text.clone()),
        [_] => Err(Error::invalid(format!("expected a text in `{}`, but found an empty one", input.name))),
        _ => Err(Error::invalid(format!("expected one text in `{}`, but found {}", input.name, found.len()))),
    }
}

/// Labels, which the pipeline checks. There are at most `limit`, before they are copied.
fn labels(input: &InferInput, limit: usize) -> Result<Vec<String>> {
    let labels = strings(input)?;
    if labels.len() > limit {
        fields::count(&input.name, labels.len(), limit)?;
    }
    Ok(labels.to_vec())
}

fn texts(input: &InferInput, limit: usize) -> Result<Vec<String>> {
    let texts = strings(input)?;
    fields::count(&input.name, texts.len(), limit)?;
    match texts.iter().position(String::is_empty) {
        Some(index) => Err(Error::invalid(format!(
            "expected a text in `{}[{index}]`, but found an empty one",
            input.name
        ))),
        None => Ok(texts.to_vec()),
    }
}

fn tokens(ids: &InferInput, mask: Option<&InferInput>, limit: usize) -> Result<Vec<Vec<u32>>> {
    let integers = |input: &InferInput| match &input.elements {
        InputElements::Integers(values) => Ok(values.clone()),
        InputElements::Texts(_) => {
            Err(Error::invalid(format!("expected `{}` as INT32 or INT64, but found BYTES", input.name)))
        }
    };
    let (count, length) = match ids.shape[..] {
        [length] => (1, length),
        [count, length] => (count, length),
        _ => {
            return Err(Error::invalid(format!(
                "expected `{}` of shape [texts, tokens], but found {:?}",
                ids.name, ids.shape
            )));
        }
    };
    fields::count(&ids.name, count, limit)?;
    if length == 0 {
        return Err(Error::invalid(format!("expected tokens in `{}`, but found none", ids.name)));
    }
    if let Some(mask) = mask.filter(|mask| mask.shape != ids.shape) {
        return Err(Error::invalid(format!(
            "expected `{}` of shape {:?}, like `{}`, but found {:?}",
            mask.name, ids.shape, ids.name, mask.shape
        )));
    }
    let values = integers(ids)?;
    let kept = mask.map(integers).transpose()?.unwrap_or_else(|| vec![1; values.len()]);
    let rows = values.chunks(length).zip(kept.chunks(length)).enumerate();
    rows.map(|(index, (row, kept))| {
        let row = row.iter().zip(kept).filter(|(_, kept)| **kept != 0);
        let row: Vec<u32> =
            row.map(|(id, _)| u32::try_from(*id)).collect::<Result<_, _>>().map_err(|_| {
                Error::invalid(format!("expected token ids in `{}`, but found other integers", ids.name))
            })?;
        if row.is_empty() {
            return Err(Error::invalid(format!(
                "expected tokens in row {index} of `{}`, but found none",
                ids.name
            )));
        }
        Ok(row)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{dialect::Dialect, rejection::Rejection};

    #[test]
    fn a_query_that_is_not_one_text_is_invalid() {
        let refusal = |texts: &[&str]| {
            let elements = InputElements::Texts(texts.iter().map(ToString::to_string).collect());
            let mut input = InferInput::default();
            (input.name, input.elements) = ("QUERY".into(), elements);
            let rejection = Rejection::from(text(&input).unwrap_err());
            format!("{} {}", Dialect::KServe.status(rejection.status).as_u16(), rejection.message)
        };
        insta::assert_snapshot!([refusal(&["a", "b"]), refusal(&[]), refusal(&[""])].join("\n"), @r"
        400 expected one text in `QUERY`, but found 2
        400 expected one text in `QUERY`, but found 0
        400 expected a text in `QUERY`, but found an empty one
        ");
    }
}
