//! A two-dimensional model without a graph: a token's vector is (its id, 1).

use std::sync::Arc;

use kivu::{
    Error,
    backend::{Engine, Signature, TensorSpec, scripted::ScriptedBackend, tensors::TensorEncoder},
    model::{Model, Pipeline},
    pipeline::{
        Task,
        classification::ranking::RankingPipeline,
        embedding::{
            DenseSettings, EmbeddingPipeline, EmbeddingSettings, pooling::Pooling,
            similarity::Similarity,
        },
    },
    repository::{
        Manifest, TaskSettings,
        manifest::{Origin, Precision, TensorNames, Weights},
    },
    tensor::{ElementType, Elements, Tensor},
    tokenizer::{SpecialTokens, Tokenizer},
};

use crate::models::{self, fixtures};

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
pub(crate) fn model_with(task: Task, default_prompt: Option<String>) -> Model {
    let [fails_on, panics_on] = [FAILS, PANICS].map(last_id);
    let signature = Signature {
        inputs: ["input_ids", "attention_mask", "token_type_ids"]
            .map(|name| TensorSpec::new(name, ElementType::Int64, [-1, -1]))
            .into(),
        outputs: vec![TensorSpec::new(
            "last_hidden_state",
            ElementType::Fp32,
            [-1, -1, 2],
        )],
    };
    let backend = ScriptedBackend::new(signature.clone(), move |inputs| {
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
    let settings = EmbeddingSettings {
        dense: Some(DenseSettings {
            output: "last_hidden_state".into(),
            pooling: Pooling::Mean,
            normalize: true,
            dimensions: 2,
            similarity: Similarity::Cosine,
        }),
        sparse: None,
        multi_vector: None,
        max_tokens: 12,
        default_prompt,
        prompts: [("query".to_owned(), "cat ".to_owned())].into(),
        unpooled: None,
        tasks: Vec::new(),
        default_task: None,
        placeholders: Vec::new(),
    };
    let backend = TensorEncoder::shared(backend).unwrap();
    let pipeline =
        EmbeddingPipeline::new(Arc::new(tokenizer()), backend, settings.clone()).unwrap();
    Model {
        max_input_memory: None,
        settings: models::settings(12),
        name: "tiny".into(),
        digest: "d".repeat(64),
        arithmetic: None,
        manifest: Manifest {
            format: Manifest::FORMAT,
            name: "tiny".into(),
            aliases: Vec::new(),
            allowed: Vec::new(),
            vectors: None,
            task,
            graph: "model.onnx".into(),
            engine: Engine::default(),
            source: Origin {
                architecture: "BertModel".into(),
                from: "tiny".into(),
                sha256: String::new(),
            },
            weights: Weights {
                precision: Precision::Fp32,
                plan: "none".into(),
                quality: None,
                other_vectors: [].into(),
            },
            settings: TaskSettings::Embedding(settings),
            tensors: TensorNames::default(),
            warnings: Vec::new(),
            signature,
            files: Vec::new(),
        },
        pipeline: match task {
            Task::TextRanking => Pipeline::Ranking(RankingPipeline::Embedding(pipeline)),
            _ => Pipeline::Embedding(pipeline),
        },
        files: None,
    }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&fixtures().join("models/tiny-bert/tokenizer.json")).unwrap()
}

fn last_id(word: &str) -> u32 {
    let encoding = tokenizer().tokens(word, SpecialTokens::LeftOut).unwrap();
    encoding.last().map(|token| token.id).unwrap()
}
