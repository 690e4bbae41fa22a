//! A two-dimensional model without a graph: a token's vector is (its id, 1).

use std::sync::Arc;

use kivu::{
    Error,
    backend::{scripted::ScriptedBackend, tensors::TensorEncoder},
    model::{Local, Model},
    pipeline::Task,
    repository::Manifest,
    tensor::{Elements, Tensor},
    tokenizer::{SpecialTokens, Tokenizer},
};

use crate::models::fixtures;

/// Words on whose ids the scripted model fails or panics.
pub(crate) const FAILS: &str = "fish";
pub(crate) const PANICS: &str = "banana";

pub(crate) fn scripted_model() -> Model {
    scripted_model_of(Task::FeatureExtraction)
}

/// The same model for another task.
pub(crate) fn scripted_model_of(task: Task) -> Model {
    model_with(task, None)
}

/// The same model for a task and with a default prompt.
pub(crate) fn model_with(task: Task, default_prompt: Option<&str>) -> Model {
    let [fails_on, panics_on] = [FAILS, PANICS].map(last_id);
    let default_prompt = default_prompt.map(|name| format!("default_prompt = {name:?}"));
    let manifest = format!(
        r#"format = 2
        name = "tiny"
        task = "{task}"
        graph = "model.onnx"
        files = []
        source = {{ architecture = "BertModel", from = "tiny", sha256 = "" }}
        weights = {{ precision = "fp32", plan = "none" }}
        [settings.embedding]
        output = "last_hidden_state"
        pooling = "mean"
        normalize = true
        dimensions = 2
        max_tokens = 12
        prompts = {{ query = "cat " }}
        {}
        [signature]
        inputs = [
            {{ name = "input_ids", element_type = "INT64", shape = [-1, -1] }},
            {{ name = "attention_mask", element_type = "INT64", shape = [-1, -1] }},
            {{ name = "token_type_ids", element_type = "INT64", shape = [-1, -1] }},
        ]
        outputs = [{{ name = "last_hidden_state", element_type = "FP32", shape = [-1, -1, 2] }}]"#,
        default_prompt.unwrap_or_default()
    );
    let signature = Manifest::parse(&manifest).unwrap().signature;
    let backend = ScriptedBackend::new(signature, move |inputs| {
        let Elements::Int64(ids) = inputs[0].elements() else {
            unreachable!("the signature says INT64")
        };
        if ids.contains(&i64::from(fails_on)) {
            return Err(Error::inference_because(
                "the model failed to run",
                std::io::Error::other("kernel 7"),
            ));
        }
        assert!(!ids.contains(&i64::from(panics_on)), "scripted panic");
        let vectors = ids.iter().flat_map(|id| [*id as f32, 1.0]).collect();
        Ok(vec![Tensor::new(
            [inputs[0].shape(), &[2]].concat(),
            Elements::Fp32(vectors),
        )?])
    });
    let local = Local::Encoder(TensorEncoder::shared(backend).unwrap(), None);
    Model::from_parts(&manifest, Arc::new(tokenizer()), local).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&fixtures().join("models/tiny-bert/tokenizer.json")).unwrap()
}

fn last_id(word: &str) -> u32 {
    let encoding = tokenizer().tokens(word, SpecialTokens::LeftOut).unwrap();
    encoding.last().map(|token| token.id).unwrap()
}
