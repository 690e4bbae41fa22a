//! Models that Kivu does not run, each with the settings or weights by which it is recognized: they are refused by name.

use std::{fs, path::Path};

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
    let folder = tempfile::tempdir().unwrap();
    let code = |class: &str| json!({ "auto_map": { "AutoModel": class } });
    let other = "someone/roberta--modeling_other.XLMRobertaModel";
    let cases = [
        (
            "gte-Qwen2",
            "tiny-qwen2",
            code("modeling_qwen.Qwen2Model"),
            None,
            "`qwen2` without code of its own",
        ),
        (
            "XLM-R",
            "tiny-xlm-roberta-multi",
            code(other),
            None,
            "`xlm-roberta` without code of its own",
        ),
        (
            "NV-Embed",
            "tiny-mistral",
            json!({ "model_type": "nvembed" }),
            None,
            "but found `nvembed`",
        ),
        (
            "mmBERT",
            "tiny-modernbert",
            json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0 } }),
            None,
            "expected rotary positions without scaling (`default`), but found `yarn`",
        ),
        (
            "Phi-3",
            "tiny-llama",
            json!({ "model_type": "phi3" }),
            None,
            "but found `phi3`",
        ),
        (
            "LFM2.5-Embedding",
            "tiny-lfm2",
            code("modeling_lfm2_bidirectional.Lfm2BidirectionalModel"),
            None,
            "`lfm2` without code of its own",
        ),
        (
            "LFM2 with labels",
            "tiny-lfm2",
            json!({ "architectures": ["Lfm2ForSequenceClassification"] }),
            None,
            "`lfm2` has no label head",
        ),
        (
            "LFM2 without kinds of layers",
            "tiny-lfm2",
            json!({ "layer_types": ["conv", "mamba", "conv", "full_attention"] }),
            None,
            "expected `layer_types` with `conv` or `full_attention` for each of 4 layers",
        ),
        (
            "Ministral 3 without growth",
            "tiny-ministral3",
            json!({ "rope_parameters": { "rope_type": "yarn", "factor": 4.0 } }),
            None,
            "expected a finite `llama_4_scaling_beta`",
        ),
        (
            "Ministral 3 with rotary positions for a part of each head",
            "tiny-ministral3",
            json!({ "partial_rotary_factor": 0.5 }),
            None,
            "found `partial_rotary_factor`",
        ),
        (
            "voyage-4-nano",
            "tiny-qwen3",
            json!({}),
            Some("linear.weight"),
            "but found `linear.weight`",
        ),
    ];
    for (name, base, changes, weight, expected) in cases {
        let model = folder.path().join(name);
        copy(&fixtures().join("models").join(base), &model);
        configure(&model, &changes);
        if let Some(weight) = weight {
            add_weight(&model, weight);
        }
        let request = request(
            model,
            folder.path().join(format!("{name}-built")),
            Some(Precision::Fp32),
        );
        let refusal = build_request(&request, runtime)
            .unwrap_err()
            .chain()
            .to_string();
        assert!(refusal.contains(expected), "{name}: {refusal}");
    }
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
        let expected = format!("but found `{model_type}` ({class}); {reason}");
        assert!(refusal.contains(&expected), "{refusal}");
    }
}
