//! vLLM's `/classify`: each text's best label, with the scores of all labels. NeMo Guardrails asks guard models in this
//! form. infinity has the same route, with a list of labels per text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bodies::{
        inputs,
        rejection::ApiResult,
        request::{JsonRequest, RequestBody},
        response::{Prediction, TokenUsage, predictions, with_usage},
        truncation::RequestedTruncation,
    },
    tasks::{classification::score_function, ranking::raw_scores},
};
use kivu::{
    clock,
    json::{Content, Kind},
    json_schemas::Texts,
    pipeline::{
        Input,
        classification::scores::{ScoreFunction, descending},
    },
    task::{classification::ClassificationParameters, labels},
    tokenizer::Side,
};

/// The shortest score in a list.
const MIN_SCORE_BYTES: usize = "0.0,".len();

/// Texts to classify.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `input`")]
pub struct LabelsRequest {
    /// The texts to classify: one, or a list.
    #[schemars(with = "Texts")]
    input: Content,
    /// Model name; the default is the first classification model.
    model: Option<String>,
    /// Not supported: the labels are the model's own.
    #[serde(alias = "labels")]
    #[schemars(with = "Option<()>")]
    candidate_labels: Option<Kind>,
    /// -1, or at least the model's limit, truncates longer texts.
    #[schemars(range(min = -1))]
    truncate_prompt_tokens: Option<i64>,
    /// The text end that is cut off; the right one by default.
    truncation_side: Option<Side>,
    /// Whether scores are probabilities; with false they are logits.
    use_activation: Option<bool>,
    /// infinity's: the opposite of `use_activation`. The response to a request with this field is infinity's.
    raw_scores: Option<bool>,
}

impl RequestBody for LabelsRequest {
    const FIELDS: &str = "body.classify";
}

#[derive(Serialize, JsonSchema)]
pub struct LabelsResponse<'a> {
    /// `classify-` and a new UUID.
    id: String,
    /// `list`; for infinity's clients `classify`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The name of the model that ran.
    model: &'a str,
    /// An entry per text, in input order.
    data: Labels<'a>,
    /// Tokens of the request.
    usage: TokenUsage,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Labels<'a> {
    Vllm(Vec<TextLabel<'a>>),
    /// All labels, the highest score first.
    Infinity(Vec<Vec<Prediction<'a>>>),
}

#[derive(Serialize, JsonSchema)]
struct TextLabel<'a> {
    /// The text's position in the request.
    index: usize,
    /// The label with the highest score.
    label: &'a str,
    /// All labels' scores, in the model's order.
    probs: Vec<f32>,
    /// Number of labels.
    num_classes: usize,
}

/// Classify texts, in vLLM's form
pub async fn classify(JsonRequest(context, body): JsonRequest<LabelsRequest>) -> ApiResult {
    let (model, pipeline) = context.classification(body.model.as_deref()).await?;
    if body.candidate_labels.is_some() {
        return Err(labels::unused(model, "candidate_labels").into());
    }
    let texts = inputs::texts("input", body.input, &context.texts)?;
    let truncation = RequestedTruncation {
        truncate_prompt_tokens: body.truncate_prompt_tokens,
        truncation_side: body.truncation_side,
        ..RequestedTruncation::default()
    };
    let parameters = ClassificationParameters {
        truncation: truncation.parameters(pipeline.settings().max_tokens)?,
        function_to_apply: match raw_scores(body.raw_scores, body.use_activation)? {
            Some(true) => Some(ScoreFunction::None),
            _ => score_function(model),
        },
        top_k: None,
    };
    let classifier = parameters.prepare(pipeline, &context.scope())?;
    context.check_response(texts.len() * classifier.labels().len() * MIN_SCORE_BYTES)?;
    let inputs = texts.into_iter().map(Input::Text).collect();
    let scores = classifier.run(inputs, context.deadline).await?;
    let label = |(index, probs): (usize, Vec<f32>)| {
        let best = descending(&probs).first().copied().unwrap_or(0);
        let label = classifier
            .labels()
            .get(best)
            .map(String::as_str)
            .unwrap_or_default();
        TextLabel {
            index,
            label,
            num_classes: probs.len(),
            probs,
        }
    };
    // Its client always sends the field.
    let is_infinitys = body.raw_scores.is_some();
    let ranked = |row: &Vec<f32>| predictions(classifier.labels(), row, None);
    let response = LabelsResponse {
        id: format!("classify-{}", uuid::Uuid::new_v4().simple()),
        object: if is_infinitys { "classify" } else { "list" },
        created: clock::since_1970().as_secs(),
        model: &model.name,
        data: match is_infinitys {
            true => Labels::Infinity(scores.rows.iter().map(ranked).collect()),
            false => Labels::Vllm(scores.rows.into_iter().enumerate().map(label).collect()),
        },
        usage: TokenUsage::of(&scores.usage),
    };
    Ok(with_usage(&context, &response, &scores.usage))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::scripted::ask;

    /// A ranking model has one label, whose score is the one that a pair has in a ranking.
    #[tokio::test]
    async fn models_with_one_label_classify() {
        let pair = json!({ "model": "ranking", "inputs": [["cat", "dog"]] });
        let (_, predicted) = ask("/predict", &pair).await;
        let body = json!({ "model": "ranking", "query": "cat", "texts": ["dog"] });
        let (_, ranked) = ask("/rerank", &body).await;
        assert_eq!(predicted[0][0]["score"], ranked[0]["score"], "{predicted}");
        assert_eq!(predicted[0][0]["label"], "score");
        let raw = json!({ "model": "ranking", "inputs": "cat", "raw_scores": true });
        insta::assert_snapshot!(ask("/predict", &raw).await.1, @r#"[{"label":"score","score":1.0}]"#);
        for path in ["/classify", "/v1/classify"] {
            let (_, labels) = ask(path, &json!({ "model": "ranking", "input": "cat" })).await;
            insta::allow_duplicates! {
                insta::assert_snapshot!(labels["data"], @r#"[{"index":0,"label":"score","num_classes":1,"probs":[0.7310586]}]"#);
            }
            let body = json!({ "model": "ranking", "input": "cat", "use_activation": false });
            assert_eq!(ask(path, &body).await.1["data"][0]["probs"], json!([1.0]));
            let mut answers = String::new();
            for is_raw in [false, true] {
                let body = json!({ "model": "ranking", "input": ["cat"], "raw_scores": is_raw });
                let (_, labels) = ask(path, &body).await;
                answers += &format!("{} {}\n", labels["object"], labels["data"]);
            }
            insta::allow_duplicates! {
                insta::assert_snapshot!(answers, @r#"
                "classify" [[{"label":"score","score":0.7310586}]]
                "classify" [[{"label":"score","score":1.0}]]
                "#);
            }
        }
    }
}
