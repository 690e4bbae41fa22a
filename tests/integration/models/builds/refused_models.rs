//! Models that Kivu does not run, each with the settings or weights by which it is recognized: they are refused by name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kivu::repository::manifest::Precision;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use crate::{
    copies::copy,
    models::{build_request, fixtures, request, runtime},
};

/// Changes keys in a model's config.
fn configure(model: &Path, changes: &Value) {
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(path, config.to_string()).unwrap();
}

/// Adds a weight to a model.
fn add_weight(model: &Path, name: &str) {
    let path = model.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let values = [0u8; 64];
    let mut all: Vec<(&str, TensorView<'_>)> = tensors.iter().collect();
    all.push((
        name,
        TensorView::new(Dtype::F32, vec![4, 4], &values).unwrap(),
    ));
    fs::write(path, safetensors::serialize(all, None).unwrap()).unwrap();
}

#[test]
fn named_models_are_refused_by_what_they_need() {
    let Some(runtime) = runtime() else { return };
    let code = |class: &str| json!({ "auto_map": { "AutoModel": class } });
    let other = "someone/roberta--modeling_other.XLMRobertaModel";
    let cases = [
        (
            "gte-Qwen2",
            "tiny-qwen2",
            code("modeling_qwen.Qwen2Model"),
            "`qwen2` without code of its own",
        ),
        (
            "XLM-R",
            "tiny-xlm-roberta-multi",
            code(other),
            "`xlm-roberta` without code of its own",
        ),
        (
            "NV-Embed",
            "tiny-mistral",
            json!({ "model_type": "nvembed" }),
            "the `model_type` `nvembed`",
        ),
        (
            "mmBERT",
            "tiny-modernbert",
            json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0 } }),
            "expected rotary positions without scaling (`default`), but found `yarn`",
        ),
        (
            "jina-reranker-v3.5",
            "tiny-jina-reranker-v3",
            json!({ "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": true }),
            "`JinaForRanking` with attention windows is not supported; Kivu runs jina-reranker-v3; the prompt of",
        ),
        (
            "jina-reranker-v3 without its code",
            "tiny-jina-reranker-v3",
            json!({ "auto_map": null }),
            "expected `JinaForRanking` in `architectures` and `auto_map`, but found it in one of them",
        ),
        (
            "jina-reranker-v3 without a projector",
            "tiny-qwen3",
            json!({ "architectures": ["JinaForRanking"], "auto_map": { "AutoModel": "modeling.JinaForRanking" } }),
            "expected `modeling.py` as Kivu knows it, since no code is run, but found no such file",
        ),
        (
            "Phi-3",
            "tiny-llama",
            json!({ "model_type": "phi3" }),
            "the `model_type` `phi3`",
        ),
        (
            "LFM2.5-Embedding",
            "tiny-lfm2",
            code("modeling_lfm2_bidirectional.Lfm2BidirectionalModel"),
            "expected `modeling_lfm2_bidirectional.py` as Kivu knows it, since no code is run, but found no such file",
        ),
        (
            "pplx-embed-context",
            "tiny-pplx",
            code("modeling.PPLXQwen3ContextualModel"),
            "expected `PPLXQwen3Model` in `bidirectional_pplx_qwen3`, but found `PPLXQwen3ContextualModel`",
        ),
        (
            "voyage-4-nano with windows",
            "tiny-voyage",
            json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1 }),
            "expected layers without windows in code of its own",
        ),
        (
            "MobileBERT with other widths",
            "tiny-mobilebert",
            json!({ "true_hidden_size": 32 }),
            "expected a `true_hidden_size` of 16",
        ),
        (
            "LFM2 with labels",
            "tiny-lfm2",
            json!({ "architectures": ["Lfm2ForSequenceClassification"] }),
            "`lfm2` has no label head",
        ),
        (
            "LFM2 without kinds of layers",
            "tiny-lfm2",
            json!({ "layer_types": ["conv", "mamba", "conv", "full_attention"] }),
            "expected `layer_types` with `conv` or `full_attention` for each of 4 layers",
        ),
        (
            "Ministral 3 without growth",
            "tiny-ministral3",
            json!({ "rope_parameters": { "rope_type": "yarn", "factor": 4.0 } }),
            "expected a finite `llama_4_scaling_beta`",
        ),
        (
            "Ministral 3 with rotary positions for a part of each head",
            "tiny-ministral3",
            json!({ "partial_rotary_factor": 0.5 }),
            "`partial_rotary_factor` 0.5 in `config.json` is unknown",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let changed = |name: &str, base: &str, changes: &Value| {
        let model = folder.path().join(name);
        copy(&fixtures().join("models").join(base), &model);
        configure(&model, changes);
        model
    };
    let refusal = |model: PathBuf| {
        let out = model.with_extension("built");
        let request = request(model, out, Some(Precision::Fp32));
        let error = build_request(&request, runtime).unwrap_err();
        error.chain().to_string()
    };
    for (name, base, changes, expected) in cases {
        let refusal = refusal(changed(name, base, &changes));
        assert!(refusal.contains(expected), "{name}: {refusal}");
    }
    let voyage = changed("voyage-4-nano", "tiny-qwen3", &json!({}));
    add_weight(&voyage, "linear.weight");
    let refusal = refusal(voyage);
    assert!(refusal.contains("but found `linear.weight`"), "{refusal}");
}

/// Code is known by its bytes; another file builds the same model on request, with a warning.
#[test]
fn changed_code_is_refused_by_its_hash_unless_it_is_allowed() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy(&fixtures().join("models/tiny-pplx"), &model);
    for (file, key) in [("modeling.py", "auto_map"), ("st_quantize.py", "type")] {
        let path = model.join(file);
        let known = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{known}\n")).unwrap();
        let mut request = request(
            model.clone(),
            folder.path().join(key),
            Some(Precision::Fp32),
        );
        let refusal = build_request(&request, runtime).unwrap_err().chain();
        let expected =
            format!("expected `{file}` as Kivu knows it, since no code is run, but found SHA-256 ");
        let hint = format!("use `--allow {key}` to build the model as the known file describes it");
        assert!(
            refusal.contains(&expected) && refusal.contains(&hint),
            "{refusal}"
        );
        request.allow = vec![key.to_owned()];
        build_request(&request, runtime).unwrap();
        fs::write(&path, known).unwrap();
    }
}

/// Kivu pads queries at their end.
#[test]
fn queries_that_are_padded_at_the_left_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy(&fixtures().join("models/tiny-pplx-late"), &model);
    let path = model.join("tokenizer_config.json");
    let settings = fs::read_to_string(&path).unwrap();
    let left = settings.replace("\"right\"", "\"left\"");
    assert_ne!(settings, left);
    fs::write(path, left).unwrap();
    let request = request(model, folder.path().join("built"), Some(Precision::Fp32));
    let refusal = build_request(&request, runtime).unwrap_err().chain();
    assert!(
        refusal.contains("expected `padding_side` `right` in a model that pads queries"),
        "{refusal}"
    );
}

/// `docs/design.md` has what these models need.
#[test]
fn models_that_are_not_built_are_refused_by_their_model_type() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let translators =
        "Kivu does not run decoders that generate texts; it translates with M2M100, NLLB, ";
    let cases = [
        ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", translators),
        ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", translators),
        ("gemma3", "Gemma3ForConditionalGeneration", translators),
        (
            "lfm2_moe",
            "Lfm2MoeForCausalLM",
            "among LFM2's models, Kivu runs ",
        ),
        (
            "lfm2_bidirectional",
            "Lfm2BidirectionalModel",
            "among LFM2's models, Kivu runs ",
        ),
        (
            "bidirlm",
            "BidirLMModel",
            "Kivu does not know what the model's own code computes; ",
        ),
        (
            "longformer",
            "LongformerModel",
            "Kivu does not run windows with global tokens; ",
        ),
        (
            "longformer",
            "LongformerForSequenceClassification",
            "Kivu does not run windows with global tokens; ",
        ),
    ];
    for (model_type, class, reason) in cases {
        let model = folder.path().join(class);
        copy(&fixtures().join("models/tiny-llama"), &model);
        configure(
            &model,
            &json!({ "model_type": model_type, "architectures": [class] }),
        );
        let request = request(
            model,
            folder.path().join(format!("{class}-built")),
            Some(Precision::Fp32),
        );
        let refusal = build_request(&request, runtime)
            .unwrap_err()
            .chain()
            .to_string();
        let expected = format!("the `model_type` `{model_type}` ({class}) is not supported");
        assert!(refusal.contains(&expected), "{refusal}");
        assert!(refusal.contains(&format!("; {reason}")), "{refusal}");
    }
}
