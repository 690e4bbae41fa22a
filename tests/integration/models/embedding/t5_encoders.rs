//! T5 encoders as embedding models, compared with sentence-transformers.

use std::fs;

use kivu::{
    backend::Engine, pipeline::Task, repository::manifest::Precision, tokenizer::SpecialTokens,
};
use serde_json::Value;

use crate::{
    copies::copy,
    embedding::decoders::quantized_is_close_to_fp32,
    embedding::goldens::{pipeline, tiny, tiny_in},
    models::{build_request, fixtures, request, runtime, serve},
};

const NAME: &str = "tiny-sentence-t5";

#[tokio::test]
async fn sentence_t5_with_a_dense_module() {
    tiny(NAME).await;
}

/// A whole checkpoint's decoder is not used if there are sentence-transformers files.
#[tokio::test]
async fn a_whole_t5_with_a_pooling() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    copy(&fixtures().join("models/tiny-flan-t5"), &source);
    let modules = r#"[
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    ]"#;
    fs::write(source.join("modules.json"), modules).unwrap();
    fs::create_dir(source.join("1_Pooling")).unwrap();
    let pooling = r#"{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}"#;
    fs::write(source.join("1_Pooling/config.json"), pooling).unwrap();
    tiny_in(source, "tiny-flan-t5-embedder").await;
}

#[tokio::test]
async fn quantized_t5_encoders_are_close_to_fp32() {
    quantized_is_close_to_fp32(NAME, Engine::Native).await;
}

/// T5's authors publish models with a SentencePiece model only.
#[tokio::test]
async fn the_encoder_of_mt5_is_built_with_its_sentencepiece_model() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    copy(&fixtures().join("models/tiny-mt5"), &source);
    let config = fs::read_to_string(source.join("config.json")).unwrap();
    fs::write(
        source.join("config.json"),
        config.replace("MT5ForConditionalGeneration", "MT5EncoderModel"),
    )
    .unwrap();
    let request = request(source, folder.path().join("out"), Some(Precision::Fp32));
    let bundle = build_request(&request, runtime).unwrap();
    assert_eq!(bundle.manifest().task, Task::FeatureExtraction);
    let golden = fs::read(fixtures().join("goldens/tiny-mt5.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let model = serve(&bundle.path("")).unwrap();
    for case in golden["tokenized"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let tokens = pipeline(&model)
            .encoder()
            .tokenizer()
            .tokens(text, SpecialTokens::Added)
            .unwrap();
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        assert_eq!(Value::from(ids), case["ids"], "{text:?}");
    }
}
