//! A scripted model for every task, also for the tests of `kivu-http`.

use std::sync::Arc;

use kivu::{
    Model, Result,
    backend::{
        Signature,
        scripted::{ScriptedBackend, ScriptedSeq2Seq},
        tensors::TensorEncoder,
    },
    model::Local,
    repository::Manifest,
    tensor::{Elements, Tensor},
    tokenizer::Tokenizer,
};

const TOKENIZER: &[u8] = include_bytes!("../../../tests/fixtures/models/tiny-bert/tokenizer.json");

/// Names, tasks, the output's shapes, and settings.
pub const MODELS: [[&str; 4]; 6] = [
    [
        "embedding",
        "feature-extraction",
        "[-1, -1, 2]",
        r#"[settings.embedding]
        output = "output"
        pooling = "mean"
        normalize = true
        dimensions = 2
        prompts = { query = "cat " }"#,
    ],
    [
        "classification",
        "text-classification",
        "[-1, 3]",
        r#"[settings.classification]
        output = "output"
        labels = ["good", "bad", "ugly"]
        function = "softmax"
        identifies_languages = true"#,
    ],
    [
        "token-classification",
        "token-classification",
        "[-1, -1, 3]",
        r#"[settings.token_classification]
        output = "output"
        labels = ["O", "B-PER", "I-PER"]"#,
    ],
    [
        "zero-shot",
        "zero-shot-classification",
        "[-1, 2]",
        r#"[settings.classification]
        output = "output"
        labels = ["contradiction", "entailment"]
        function = "softmax""#,
    ],
    [
        "ranking",
        "text-ranking",
        "[-1, 1]",
        r#"[settings.classification]
        output = "output"
        labels = ["score"]
        function = "softmax""#,
    ],
    [
        "translation",
        "translation",
        "[-1, -1]",
        r#"[settings.seq2seq]
        max_positions = 32
        decoder = { graph = "decoder.onnx", signature = { inputs = [], outputs = [] } }
        languages = { kind = "pair", source = "en", target = "pt" }
        generation = { decoder_start_token_id = 0, eos_token_ids = [3], pad_token_id = 0 }"#,
    ],
];

/// One model per task.
pub fn models() -> Result<Vec<Model>> {
    let tokenizer = Arc::new(Tokenizer::from_json(TOKENIZER)?);
    let model = |[name, task, shape, settings]: [&str; 4]| {
        let manifest = format!(
            r#"format = 2
            name = {name:?}
            task = {task:?}
            graph = "model.onnx"
            files = []
            source = {{ architecture = "Any", from = "nowhere", sha256 = "" }}
            weights = {{ precision = "fp32", plan = "none" }}
            {settings}
            max_tokens = 16
            [[signature.inputs]]
            name = "input_ids"
            element_type = "INT64"
            shape = [-1, -1]
            [[signature.outputs]]
            name = "output"
            element_type = "FP32"
            shape = {shape}"#
        );
        let local = if task == "translation" {
            Local::Seq2Seq(Arc::new(generator(tokenizer.vocabulary_size())))
        } else {
            let backend = ones(Manifest::parse(&manifest)?.signature);
            Local::Encoder(TensorEncoder::shared(backend)?, None)
        };
        Model::from_parts(&manifest, Arc::clone(&tokenizer), local)
    };
    MODELS.into_iter().map(model).collect()
}

/// A backend whose output is all ones.
fn ones(signature: Signature) -> ScriptedBackend {
    let output = signature.outputs[0].shape.clone();
    ScriptedBackend::new(signature, move |inputs| {
        let sides = inputs[0].shape().iter().copied().chain([1]);
        let sides = sides
            .zip(&output)
            .map(|(free, side)| usize::try_from(*side).unwrap_or(free));
        let shape: Vec<usize> = sides.collect();
        let count = shape.iter().product();
        Ok(vec![Tensor::new(shape, Elements::Fp32(vec![1.0; count]))?])
    })
}

/// Generates one token.
fn generator(vocabulary: usize) -> ScriptedSeq2Seq {
    ScriptedSeq2Seq::new(vocabulary, move |_, target| {
        let likely = if target.len() > 2 { 3 } else { 7 };
        (0..vocabulary)
            .map(|token| if token == likely { 1.0 } else { 0.0 })
            .collect()
    })
}
