//! Tensors per task: token ids or texts in; floats, ids or texts out.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{
    message::{InferInput, InferRequest, InputElements, Output},
    outputs, vectors,
};
use crate::{
    bodies::{inputs as fields, request::Context},
    fields::known,
    tasks::classification::prepare_zero_shot,
};
use kivu::{
    Error, Result,
    error::quoted,
    json::{Known, check},
    model::{Model, Pipeline},
    pipeline::{Input, Task, classification::scores::ScoreFunction},
    repository::{Manifest, TaskSettings, manifest::TensorNames},
    task::{
        classification::ClassificationParameters,
        entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
        labels::refuse_unused,
        ranking::RankingParameters,
        text_to_text::TextToTextParameters,
    },
    tensor::Elements,
};

/// Default names for outputs.
const LOGITS: &str = "logits";
const SCORES: &str = "scores";
const ENTITIES: &str = "entities";
const IDS: &str = "generated_indices";

/// A tensor in a model's metadata.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DeclaredTensor {
    /// `FP32`, `INT32`, `INT64` or `BYTES`.
    datatype: &'static str,
    /// The name in requests and responses.
    pub name: String,
    /// Dimensions; -1 for any size.
    shape: Vec<i64>,
}

impl DeclaredTensor {
    /// The tensor in a model's configuration.
    pub fn configuration(&self) -> ConfiguredTensor {
        let data_type = if self.datatype == "BYTES" {
            "STRING"
        } else {
            self.datatype
        };
        ConfiguredTensor {
            data_type: format!("TYPE_{data_type}"),
            dims: self.shape.clone(),
            name: self.name.clone(),
        }
    }
}

/// A tensor in a model's configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConfiguredTensor {
    /// Triton's name for the type, such as `TYPE_FP32`.
    data_type: String,
    /// Dimensions; -1 for any size.
    dims: Vec<i64>,
    /// The name in requests and responses.
    name: String,
}

/// A model's tensors, with the names in its manifest.
#[derive(Clone, Debug)]
pub struct Interface {
    /// All possible inputs; some exclude each other.
    pub inputs: Vec<DeclaredTensor>,
    /// All possible outputs; a request's inputs determine which one it gets.
    pub outputs: Vec<DeclaredTensor>,
    names: TensorNames,
}

impl Interface {
    pub fn of(manifest: &Manifest) -> Self {
        let names = manifest.tensors.clone();
        let spec = |name: &str, datatype, shape: &[i64]| DeclaredTensor {
            name: name.into(),
            datatype,
            shape: shape.into(),
        };
        let text = spec(&names.text, "BYTES", &[-1, 1]);
        let tokens = [&names.ids, &names.mask].map(|name| spec(name, "INT64", &[-1, -1]));
        let output = |default: &str, datatype, shape: &[i64]| {
            spec(names.output.as_deref().unwrap_or(default), datatype, shape)
        };
        let entities = || output(ENTITIES, "BYTES", &[-1, 1]);
        let takes_labels = matches!(manifest.settings, TaskSettings::ZeroShotEntities(_));
        let labels = manifest.labels().map_or(0, <[_]>::len) as i64;
        let outputs = match manifest.task {
            Task::FeatureExtraction => manifest
                .embedding()
                .into_iter()
                .flat_map(|own| vectors::outputs(own, names.output.as_deref()))
                .map(|(name, datatype, shape)| spec(name, datatype, &shape))
                .collect(),
            Task::TextClassification => vec![output(LOGITS, "FP32", &[-1, labels])],
            Task::TokenClassification if takes_labels => vec![entities()],
            Task::TokenClassification => {
                vec![output(LOGITS, "FP32", &[-1, -1, labels]), entities()]
            }
            Task::ZeroShotClassification => vec![output(SCORES, "FP32", &[-1, -1])],
            Task::TextRanking => vec![output(SCORES, "FP32", &[-1])],
            Task::Translation | Task::Summarization | Task::TextToText => {
                let texts = output(manifest.task.generated_name(), "BYTES", &[-1, -1]);
                vec![output(IDS, "INT64", &[-1, -1]), texts]
            }
        };
        let inputs = match manifest.task {
            Task::ZeroShotClassification => vec![text, spec(&names.labels, "BYTES", &[-1])],
            Task::TokenClassification if takes_labels => {
                vec![text, spec(&names.labels, "BYTES", &[-1])]
            }
            Task::TextRanking => vec![spec(&names.query, "BYTES", &[1]), text],
            _ => tokens.into_iter().chain([text]).collect(),
        };
        Self {
            inputs,
            outputs,
            names,
        }
    }

    /// Output names for a request: for an embedding model, any that it names; for other models, the last one for texts,
    /// the first one for ids.
    fn requested<'a>(
        &'a self,
        pipeline: &Pipeline,
        request: &'a InferRequest,
    ) -> Result<Vec<&'a str>> {
        let known: Vec<&str> = self
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        if let Pipeline::Embedding(pipeline) = pipeline {
            return request.requested(&known, &vectors::by_default(pipeline, &known));
        }
        let of_texts = request.input(&self.names.text).is_some();
        let only = if of_texts {
            known.last()
        } else {
            known.first()
        };
        let only: Vec<&str> = only.copied().into_iter().collect();
        request.requested(&only, &only)
    }

    fn check_names(&self, request: &InferRequest) -> Result<()> {
        let known: Vec<&str> = self
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect();
        match request
            .inputs
            .iter()
            .find(|input| !known.contains(&input.name.as_str()))
        {
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
pub async fn run<'a>(
    context: &Context,
    model: &Model,
    interface: &'a Interface,
    request: &'a InferRequest,
) -> Result<Vec<(&'a str, Output)>> {
    let outputs = interface.requested(&model.pipeline, request)?;
    outputs
        .iter()
        .try_for_each(|name| request.is_binary_requested(name).map(drop))?;
    interface.check_names(request)?;
    refuse_unused(model, &request.parameters)?;
    let parameters = Value::Object(request.parameters.clone());
    check(&parameters, task_parameters(&model.pipeline)?)
        .map_err(|error| error.at("in `parameters`"))?;
    let (scope, deadline) = (context.scope(), context.deadline);
    let rows = || rows(context, &interface.names, request);
    let labelled = || -> Result<_> {
        let texts = texts(context, request, &interface.names.text)?;
        Ok((
            texts,
            labels(
                required(request, &interface.names.labels)?,
                context.app.limits.texts,
            )?,
        ))
    };
    let output = match &model.pipeline {
        Pipeline::Embedding(pipeline) => {
            let inputs = rows()?.into_inputs();
            let embedder =
                vectors::prepare(pipeline, &outputs, request.task_parameters()?, &scope)?;
            return vectors::run(context, &embedder, &outputs, inputs).await;
        }
        Pipeline::Classification(pipeline) => {
            let inputs = rows()?.into_inputs();
            let mut parameters: ClassificationParameters = request.task_parameters()?;
            (parameters.function_to_apply, parameters.top_k) = (Some(ScoreFunction::None), None);
            outputs::matrix(
                &parameters
                    .prepare(pipeline, &scope)?
                    .run(inputs, deadline)
                    .await?,
            )
        }
        Pipeline::TokenClassification(pipeline) => {
            let rows = rows()?;
            let parameters: TokenClassificationParameters = request.task_parameters()?;
            match rows {
                Rows::Tokens(rows) => outputs::logits(context, pipeline, rows, &parameters).await?,
                Rows::Texts(texts) => {
                    outputs::entities(&parameters.prepare(pipeline, &scope)?, texts, deadline)
                        .await?
                }
            }
        }
        Pipeline::ZeroShotEntities(pipeline) => {
            let (texts, labels) = labelled()?;
            let parameters: ZeroShotEntitiesParameters = request.parameters_with(labels)?;
            outputs::entities(&parameters.prepare(pipeline, &scope)?, texts, deadline).await?
        }
        Pipeline::ZeroShot(pipeline) => {
            let (texts, labels) = labelled()?;
            let parameters = request.parameters_with(labels)?;
            let classifier = prepare_zero_shot(context, pipeline, texts.len(), &parameters)?;
            outputs::matrix(&classifier.run(&texts, deadline).await?)
        }
        Pipeline::Ranking(pipeline) => {
            let query = text(required(request, &interface.names.query)?)?;
            let texts = texts(context, request, &interface.names.text)?;
            let ranker = request
                .task_parameters::<RankingParameters>()?
                .prepare(pipeline, &scope)?;
            let (scores, usage) = ranker.run(query, texts, deadline).await?;
            let shape = vec![scores.len()];
            Output {
                shape,
                elements: Elements::Fp32(scores),
                usage,
            }
        }
        Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
            let generate_parameters = Some(request.generation_options()?);
            let parameters = TextToTextParameters {
                generate_parameters,
                ..request.task_parameters()?
            };
            let generator = parameters.prepare(pipeline, &scope);
            match rows()? {
                Rows::Tokens(rows) => outputs::generated_ids(&generator, rows, deadline).await?,
                Rows::Texts(texts) => outputs::generated_texts(&generator, texts, deadline).await?,
            }
        }
    };
    Ok(outputs.into_iter().zip([output]).collect())
}

/// The parameters of a model's task. Those of other tasks are refused, since they would have no effect.
fn task_parameters(pipeline: &Pipeline) -> Result<Known> {
    known(match pipeline {
        Pipeline::Embedding(_) => "body.infer_embedding",
        Pipeline::Classification(_) => "body.infer_classification",
        Pipeline::TokenClassification(_) => "body.infer_tokens",
        Pipeline::ZeroShotEntities(_) => "body.infer_entities",
        Pipeline::ZeroShot(_) => "body.infer_zero_shot",
        Pipeline::Ranking(_) => "body.infer_ranking",
        Pipeline::Translation(_) | Pipeline::TextToText(_) => "body.infer_generation",
    })
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
fn rows(context: &Context, names: &TensorNames, request: &InferRequest) -> Result<Rows> {
    let found = match (request.input(&names.text), request.input(&names.ids)) {
        (Some(_), None) if request.input(&names.mask).is_some() => {
            return Err(Error::invalid(format!(
                "`{}` belongs to `{}`, but found it beside `{}`",
                names.mask, names.ids, names.text
            ))
            .with_hint("leave it out"));
        }
        (Some(_), None) => return texts(context, request, &names.text).map(Rows::Texts),
        (None, Some(ids)) => {
            return tokens(ids, request.input(&names.mask), context.app.limits.texts)
                .map(Rows::Tokens);
        }
        (Some(_), Some(_)) => "both",
        (None, None) => "neither",
    };
    Err(Error::invalid(format!(
        "expected `{}` or `{}`, but found {found}",
        names.text, names.ids
    )))
}

fn required<'a>(request: &'a InferRequest, name: &str) -> Result<&'a InferInput> {
    request
        .input(name)
        .ok_or_else(|| Error::invalid(format!("expected the input `{name}`, but found none")))
}

fn strings(input: &InferInput) -> Result<&[String]> {
    match &input.elements {
        InputElements::Texts(texts) => Ok(texts),
        InputElements::Integers(_) => Err(Error::invalid(format!(
            "expected `{}` as BYTES, but found integers",
            input.name
        ))),
    }
}

/// An input's only text.
fn text(input: &InferInput) -> Result<String> {
    let found = strings(input)?;
    match found {
        [text] if !text.is_empty() => Ok(text.clone()),
        [_] => Err(Error::invalid(format!(
            "expected a text in `{}`, but found an empty one",
            input.name
        ))),
        _ => Err(Error::invalid(format!(
            "expected one text in `{}`, but found {}",
            input.name,
            found.len()
        ))),
    }
}

/// Labels for all texts, which the pipeline checks. There are at most `limit`, before they are copied.
fn labels(input: &InferInput, limit: usize) -> Result<Vec<String>> {
    let InferInput { name, shape, .. } = input;
    if shape.iter().filter(|side| **side > 1).count() > 1 {
        return Err(Error::invalid(format!(
            "expected `{name}` of shape [labels], the same for all texts, but found {shape:?}"
        )));
    }
    let labels = strings(input)?;
    if labels.len() > limit {
        fields::count(&input.name, labels.len(), limit)?;
    }
    Ok(labels.to_vec())
}

/// The texts of a required input, one per row: several in a row are no pairs, and would be results of their own.
fn texts(context: &Context, request: &InferRequest, name: &str) -> Result<Vec<String>> {
    let input = required(request, name)?;
    if input.shape.iter().skip(1).any(|side| *side > 1) {
        return Err(Error::invalid(format!(
            "expected `{name}` of shape [texts] or [texts, 1], but found {:?}",
            input.shape
        )));
    }
    fields::texts(name, strings(input)?.to_vec().into(), &context.texts)
}

fn integers(input: &InferInput) -> Result<&[i64]> {
    match &input.elements {
        InputElements::Integers(values) => Ok(values),
        InputElements::Texts(_) => Err(Error::invalid(format!(
            "expected `{}` as INT32 or INT64, but found BYTES",
            input.name
        ))),
    }
}

/// Number of tokens before the padding; `None` if the mask is not ones and then zeros. Tokens have their positions in the
/// tensor, so padding on the left, or between tokens, would change the result of many models.
fn unpadded(mask: &[i64]) -> Option<usize> {
    let count = mask.iter().take_while(|kept| **kept == 1).count();
    mask[count..].iter().all(|kept| *kept == 0).then_some(count)
}

fn not_padded_on_the_right(mask: &InferInput, row: usize) -> Error {
    Error::invalid(format!(
        "expected ones and then zeros in row {row} of `{}`, but found another order or other \
         values",
        mask.name
    ))
    .with_hint("pad on the right (`padding_side=\"right\"` in transformers)")
}

/// The token ids that the mask keeps, per text.
fn tokens(ids: &InferInput, mask: Option<&InferInput>, limit: usize) -> Result<Vec<Vec<u32>>> {
    let InferInput { name, shape, .. } = ids;
    let (count, length) = match shape[..] {
        [length] => (1, length),
        [count, length] => (count, length),
        _ => {
            return Err(Error::invalid(format!(
                "expected `{name}` of shape [texts, tokens], but found {shape:?}"
            )));
        }
    };
    fields::count(name, count, limit)?;
    if length == 0 {
        return Err(Error::invalid(format!(
            "expected tokens in `{name}`, but found none"
        )));
    }
    if let Some(mask) = mask.filter(|mask| mask.shape != *shape) {
        return Err(Error::invalid(format!(
            "expected `{}` of shape {shape:?}, like `{name}`, but found {:?}",
            mask.name, mask.shape
        )));
    }
    let (values, kept) = (integers(ids)?, mask.map(integers).transpose()?);
    let row = |row: usize| {
        let places = row * length..(row + 1) * length;
        let count = match (kept, mask) {
            (Some(kept), Some(mask)) => {
                unpadded(&kept[places.clone()]).ok_or_else(|| not_padded_on_the_right(mask, row))?
            }
            _ => length,
        };
        let ids = places.take(count).map(|place| u32::try_from(values[place]));
        let ids = ids.collect::<Result<Vec<_>, _>>().map_err(|_| {
            Error::invalid(format!(
                "expected token ids in `{name}`, but found other integers"
            ))
        })?;
        match ids.is_empty() {
            true => Err(Error::invalid(format!(
                "expected tokens in row {row} of `{name}`, but found none"
            ))),
            false => Ok(ids),
        }
    };
    (0..count).map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{bodies::rejection::Rejection, dialects::Dialect, scripted::ask};

    async fn infer(model: &str, input: Value, parameters: Value) -> String {
        let body = json!({ "inputs": [input], "parameters": parameters });
        let (status, answer) = ask(&format!("/v2/models/{model}/infer"), &body).await;
        let error = answer["error"].as_str().map(str::to_owned);
        format!(
            "{} {}",
            status.as_u16(),
            error.unwrap_or(answer["outputs"].to_string())
        )
    }

    fn text(shape: &[usize]) -> Value {
        let data = vec!["cat"; shape.iter().product()];
        json!({ "name": "TEXT", "shape": shape, "datatype": "BYTES", "data": data })
    }

    #[tokio::test]
    async fn parameters_of_other_tasks_are_refused() {
        let mut found = String::new();
        for (model, parameters) in [
            ("classification", json!({ "function_to_apply": "softmax" })),
            ("classification", json!({ "raw_scores": true })),
            ("classification", json!({ "top_k": 1 })),
            ("classification", json!({ "threshold": 0.5 })),
            ("token-classification", json!({ "threshold": 0.5 })),
            ("embedding", json!({ "input_type": "query" })),
            ("embedding", json!({ "output_dimension": 1 })),
            ("embedding", json!({ "words": true })),
            ("translation", json!({ "stride": 3 })),
            ("translation", json!({ "source": "en" })),
            ("embedding", json!({ "temperature": 0.5 })),
            (
                "embedding",
                json!({ "words": false, "priority": 1, "other": 1 }),
            ),
            (
                "classification",
                json!({ "truncate": true, "normalize": true, "stream": false }),
            ),
        ] {
            found += &format!(
                "{model} {}\n",
                infer(model, text(&[1, 1]), parameters).await
            );
        }
        insta::assert_snapshot!(found, @r#"
        classification 400 in `parameters`: `function_to_apply` is not supported: this route does not read it; leave it out
        classification 400 in `parameters`: `raw_scores: true` is not supported: this route does not read it; leave it out
        classification 400 in `parameters`: `top_k: 1` is not supported: this route does not read it; leave it out
        classification 400 in `parameters`: `threshold: 0.5` is not supported: this route does not read it; leave it out
        token-classification 400 in `parameters`: `threshold: 0.5` is not supported: this route does not read it; leave it out
        embedding 400 in `parameters`: `input_type` is not supported: use `prompt_name`
        embedding 400 in `parameters`: `output_dimension: 1` is not supported: use `dimensions`
        embedding 400 in `parameters`: `words: true` is not supported: this route does not read it; leave it out
        translation 400 in `parameters`: `stride: 3` is not supported: this route does not read it; leave it out
        translation 400 in `parameters`: `source` is not supported: use `src_lang`
        embedding 400 in `parameters`: `temperature: 0.5` is not supported: this route does not read it; leave it out
        embedding 200 [{"data":[0.70710677,0.70710677],"datatype":"FP32","name":"embedding","shape":[1,2]}]
        classification 200 [{"data":[1.0,1.0,1.0],"datatype":"FP32","name":"logits","shape":[1,3]}]
        "#);
    }

    #[tokio::test]
    async fn a_row_has_one_text() {
        for shape in [&[2][..], &[2, 1], &[1, 1, 1]] {
            let found = infer("embedding", text(shape), json!({ "dimensions": 1 })).await;
            assert!(found.starts_with("200"), "{shape:?} {found}");
        }
        let refusals = [
            infer("classification", text(&[1, 2]), json!({})).await,
            infer("embedding", text(&[2, 2]), json!({})).await,
            infer("translation", text(&[1, 1, 2]), json!({})).await,
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r"
        400 expected `TEXT` of shape [texts] or [texts, 1], but found [1, 2]
        400 expected `TEXT` of shape [texts] or [texts, 1], but found [2, 2]
        400 expected `TEXT` of shape [texts] or [texts, 1], but found [1, 1, 2]
        ");
        let mask =
            json!({ "name": "attention_mask", "shape": [1, 1], "datatype": "INT64", "data": [1] });
        let body = json!({ "inputs": [text(&[1, 1]), mask] });
        let (_, answer) = ask("/v2/models/embedding/infer", &body).await;
        insta::assert_snapshot!(answer["error"], @r#""`attention_mask` belongs to `input_ids`, but found it beside `TEXT`; leave it out""#);
    }

    #[tokio::test]
    async fn all_texts_have_the_same_labels() {
        let mut found = String::new();
        for shape in [&[2][..], &[2, 1], &[1, 2], &[2, 2]] {
            let count = shape.iter().product();
            let data = &["a", "b", "c", "d"][..count];
            let labels =
                json!({ "name": "LABELS", "shape": shape, "datatype": "BYTES", "data": data });
            let body = json!({ "inputs": [text(&[2, 1]), labels], "parameters": { "hypothesis_template": "{}" } });
            let (status, answer) = ask("/v2/models/zero-shot/infer", &body).await;
            let output = &answer["outputs"][0]["shape"];
            found += &format!(
                "{shape:?} {} {output} {}\n",
                status.as_u16(),
                answer["error"]
            );
        }
        insta::assert_snapshot!(found, @r#"
        [2] 200 [2,2] null
        [2, 1] 200 [2,2] null
        [1, 2] 200 [2,2] null
        [2, 2] 400 null "expected `LABELS` of shape [labels], the same for all texts, but found [2, 2]"
        "#);
    }

    #[tokio::test]
    async fn lists_have_the_shape_of_their_tensor() {
        let ids = |shape: Value, data: Value| json!({ "name": "input_ids", "shape": shape, "datatype": "INT64", "data": data });
        let one = json!({ "dimensions": 1 });
        for (shape, data) in [
            (json!([2, 3]), json!([5, 6, 7, 8, 9, 10])),
            (json!([2, 3]), json!([[5, 6, 7], [8, 9, 10]])),
            (json!([1, 3]), json!([[5], [6], [7]])),
            (json!([1, 1]), json!(5)),
        ] {
            let found = infer("embedding", ids(shape, data.clone()), one.clone()).await;
            assert!(found.starts_with("200"), "{data} {found}");
        }
        let names = json!({ "name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": [["cat", "dog"], []] });
        let refusals = [
            // Two texts of different lengths, and the other order of axes.
            infer(
                "embedding",
                ids(json!([2, 3]), json!([[5, 6, 7, 8], [9, 10]])),
                one.clone(),
            )
            .await,
            infer(
                "embedding",
                ids(json!([2, 3]), json!([[5, 6], [7, 8], [9, 10]])),
                one.clone(),
            )
            .await,
            infer("embedding", names, one).await,
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r"
        400 expected `input_ids` with `data` in one list, or in lists of shape [2, 3], but found other lists
        400 expected `input_ids` with `data` in one list, or in lists of shape [2, 3], but found other lists
        400 expected `TEXT` with `data` in one list, or in lists of shape [2, 1], but found other lists
        ");
    }

    #[test]
    fn a_query_that_is_not_one_text_is_invalid() {
        let refusal = |texts: &[&str]| {
            let elements = InputElements::Texts(texts.iter().map(ToString::to_string).collect());
            let mut input = InferInput::default();
            (input.name, input.elements) = ("QUERY".into(), elements);
            let rejection = Rejection::from(super::text(&input).unwrap_err());
            format!(
                "{} {}",
                Dialect::KServe.status(rejection.status).as_u16(),
                rejection.message
            )
        };
        insta::assert_snapshot!([refusal(&["a", "b"]), refusal(&[]), refusal(&[""])].join("\n"), @r"
        400 expected one text in `QUERY`, but found 2
        400 expected one text in `QUERY`, but found 0
        400 expected a text in `QUERY`, but found an empty one
        ");
    }
}
