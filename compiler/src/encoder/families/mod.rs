//! Encoder families: reads their `config.json` into a description, and names their weights.

mod albert;
mod bart;
mod bert;
mod deberta;
mod decoders;
mod embedding_gemma2;
mod fields;
mod gemma;
mod gte;
mod jina;
mod jina_v3;
mod jina_v5;
mod lfm2;
mod llama;
mod megatron;
mod mistral;
mod mobilebert;
mod modernbert;
mod neobert;
mod nomic;
mod not_built;
mod prelayernorm;
mod privacy_filter;
mod qwen;
mod roformer;
mod rope;
mod t5;
mod ultrabert;

use std::{collections::BTreeSet, path::Path};

pub use self::bart::check_head as check_bart_head;
pub use self::embedding_gemma2::{
    TEXT as EMBEDDING_GEMMA2_TEXT, TEXT_CONFIG, WHOLE as EMBEDDING_GEMMA2,
};
pub use self::jina_v3::JINA_V3;
pub use self::jina_v5::{CLASS as JINA_V5_CLASS, JINA_V5};
pub use self::not_built::alternative;
pub use self::qwen::LISTWISE;
use super::config::{EncoderConfig, Names};
use crate::{
    files::{config::ConfigFile, model_folder::ModelFolder, weights::Weights},
    model_types::{Family, Jina, TokenizerFiles},
    seq2seq::tokenizer_files::t5_tokenizer,
    tokenizers::{
        byte_pairs, classes,
        tokenizer_config::{self, read_newer_tokenizer, read_tokenizer},
    },
};
use kivu::{Error, Result, error::quoted};

/// Reads an encoder's config in `folder`; unsupported architectures are refused.
pub fn of(config: &ConfigFile, folder: &Path) -> Result<EncoderConfig> {
    read(config).map_err(|error| {
        Error::model_because(format!("cannot build from `{}`", folder.display()), error)
    })
}

/// The fields that the reader of an encoder's config in `folder` asks for.
///
/// # Errors
/// The reader refuses the config, as in [`of`].
pub fn asked_fields(config: &ConfigFile, folder: &Path) -> Result<BTreeSet<String>> {
    let config = config.unread();
    of(&config, folder)?;
    Ok(config.asked())
}

fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    match jina_of(config)? {
        Some(Jina::V2) => return jina::read(config),
        Some(Jina::V3) => return jina_v3::read(config),
        None => {}
    }
    match config.model_type() {
        JINA_V3 => jina_v3::read(config),
        JINA_V5 => jina_v5::read(config),
        "bert" | "camembert" | "data2vec-text" | "deberta-v2" | "distilbert" | "electra"
        | "ernie" | "mpnet" | "roberta" | "xlm-roberta" => bert::read(config),
        "albert" => albert::read(config),
        "deberta" => deberta::read(config),
        "megatron-bert" => megatron::read(config),
        "mobilebert" => mobilebert::read(config),
        "roformer" => roformer::read(config),
        prelayernorm::XLM_ROBERTA_XL | prelayernorm::ROBERTA_PRELAYERNORM => {
            prelayernorm::read(config)
        }
        "modernbert" => modernbert::read(config),
        "neobert" => neobert::read(config),
        "nomic_bert" => nomic::read(config),
        "new" | "gte" => gte::read(config),
        "llama" => llama::read(config),
        "eurobert" => llama::read_eurobert(config),
        "ultrabert" => ultrabert::read(config),
        "mistral" => mistral::read(config),
        "ministral3" => mistral::read_ministral3(config),
        "lfm2" => lfm2::read(config),
        "qwen2" => qwen::read_qwen2(config),
        "qwen3" => qwen::read_qwen3(config),
        qwen::PPLX => qwen::read_pplx(config),
        "gemma" => gemma::read_gemma(config),
        "gemma2" => gemma::read_gemma2(config),
        "gemma3_text" => gemma::read_gemma3(config),
        "openai_privacy_filter" => privacy_filter::read(config),
        embedding_gemma2::WHOLE | embedding_gemma2::TEXT => embedding_gemma2::read(config),
        t5::T5 | t5::MT5 => t5::read(config),
        bart::BART => bart::read(config),
        other => Err(Error::model(format!(
            "the `model_type` `{other}` ({}) is not supported; supported: {}",
            config.architecture(),
            quoted(&Family::names().collect::<Vec<_>>())
        ))
        .with_hint(alternative(config))),
    }
}

/// Reads the tokenizer in `folder`, as a `tokenizer.json`, of the model that `file` and `config` describe.
pub fn tokenizer(
    folder: &ModelFolder,
    file: &ConfigFile,
    config: &EncoderConfig,
) -> Result<Vec<u8>> {
    let family = Family::named(file.model_type());
    let class = tokenizer_config::class(folder)?;
    match family.map_or(TokenizerFiles::Any, |family| family.tokenizer) {
        TokenizerFiles::Any
            if classes::is_made(class.trim_end_matches("Fast"), file.model_type()) =>
        {
            read_newer_tokenizer(folder, true)
        }
        TokenizerFiles::Any => read_tokenizer(folder),
        TokenizerFiles::BytePairs => byte_pairs::tokenizer(folder),
        TokenizerFiles::BertBytePairs => byte_pairs::bert_tokenizer(folder),
        TokenizerFiles::Nomic => nomic::tokenizer(folder),
        TokenizerFiles::Gte if file.value("auto_map").is_none() => {
            read_newer_tokenizer(folder, true)
        }
        TokenizerFiles::Gte => read_tokenizer(folder),
        TokenizerFiles::Pieces => read_newer_tokenizer(folder, true),
        TokenizerFiles::T5 => t5_tokenizer(folder, config.vocabulary),
        TokenizerFiles::Bart => {
            let tokenizer = byte_pairs::tokenizer(folder)?;
            if let Some(decoder) = &config.decoder {
                bart::check_end(decoder.end, &tokenizer)?;
            }
            Ok(tokenizer)
        }
    }
}

/// The body's weights, under their prefix in models with a head. `folder` may have adapters for tasks.
pub fn weights(config: &mut EncoderConfig, mut weights: Weights, folder: &Path) -> Result<Weights> {
    ultrabert::rename(config, &mut weights);
    qwen::rename(config, &mut weights);
    let Names {
        prefix,
        words,
        words_aliases,
        ..
    } = config.names;
    for prefix in [prefix, ""] {
        let names = [&[*words], &words_aliases[..]].concat();
        let names: Vec<_> = names.iter().map(|name| format!("{prefix}{name}")).collect();
        weights.unify(&names)?;
    }
    jina_v3::read_adapters(config, &mut weights, folder)?;
    jina_v5::read_adapters(config, &mut weights, folder)?;
    jina_v3::arrange_adapters(config, &mut weights)?;
    arrange(config, &mut weights)?;
    Ok(weights.with_prefix(prefix, words))
}

/// Gives an encoder's weights inside of another model the form that the layers read.
pub fn arrange(config: &mut EncoderConfig, weights: &mut Weights) -> Result<()> {
    roformer::check_table(config, weights)?;
    neobert::arrange(config, weights);
    mobilebert::arrange(config, weights);
    privacy_filter::arrange(config, weights);
    embedding_gemma2::arrange(config, weights)?;
    deberta::arrange(config, weights)
}

/// Completes a description with properties visible only in the weights.
pub fn adapt(config: &mut EncoderConfig, weights: &Weights) -> Result<()> {
    jina::adapt(config, weights)?;
    jina_v3::adapt(config, weights)
}

/// The family of Jina's own code to which a config with another family's `model_type` belongs, if any.
pub fn jina_of(config: &ConfigFile) -> Result<Option<Jina>> {
    let jina = Family::named(config.model_type()).and_then(|family| family.jina);
    let is_described = match jina {
        Some(Jina::V2) => jina::is_described_by(config)?,
        Some(Jina::V3) => jina_v3::is_described_by(config),
        None => false,
    };
    Ok(jina.filter(|_| is_described))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::onnx::layers::{Activation, AttentionWindow, Scaling};

    fn models() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models")
    }

    /// A fixture's config with one field changed.
    fn changed(fixture: &str, field: &str, value: Value) -> Result<EncoderConfig> {
        let text = fs::read(models().join(fixture).join("config.json")).unwrap();
        let mut fields: Map<String, Value> = serde_json::from_slice(&text).unwrap();
        fields.insert(field.to_owned(), value);
        read(&ConfigFile::new("config.json", fields))
    }

    #[test]
    fn each_model_type_has_a_reader() {
        assert!(Family::names().count() > 1);
        for name in Family::names() {
            let fields = Map::from_iter([("model_type".to_owned(), json!(name))]);
            let refused = read(&ConfigFile::new("config.json", fields)).unwrap_err();
            assert!(
                !refused.to_string().contains("`model_type`"),
                "{name}: {refused}"
            );
        }
    }

    #[test]
    fn a_newer_model_has_the_tokenizer_that_its_class_makes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::copy(
            models().join("tiny-ultrabert/config.json"),
            path("config.json"),
        )
        .unwrap();
        let json = fs::read(models().join("tiny-bert/tokenizer.json")).unwrap();
        let mut file: Value = serde_json::from_slice(&json).unwrap();
        file["pre_tokenizer"] = json!({"type": "Whitespace"});
        fs::write(path("tokenizer.json"), file.to_string()).unwrap();
        for (class, expected) in [
            ("TokenizersBackend", "Whitespace"),
            ("BertTokenizerFast", "BertPreTokenizer"),
        ] {
            let settings = json!({ "tokenizer_class": class });
            fs::write(path("tokenizer_config.json"), settings.to_string()).unwrap();
            let model = ModelFolder::new(folder.path());
            let config = ConfigFile::open(&model).unwrap();
            let made = tokenizer(&model, &config, &read(&config).unwrap()).unwrap();
            let made: Value = serde_json::from_slice(&made).unwrap();
            assert_eq!(made["pre_tokenizer"]["type"], expected);
        }
    }

    #[test]
    fn tables_of_token_types_have_rows() {
        for name in [
            "albert",
            "bert",
            "jina",
            "megatron",
            "mobilebert",
            "roberta-prelayernorm",
            "roformer",
        ] {
            let model = format!("tiny-{name}");
            let refused = changed(&model, "type_vocab_size", json!(0)).unwrap_err();
            let expected = "expected `type_vocab_size` from 1 to 2097152, but found 0";
            assert_eq!(refused.to_string(), expected, "{model}");
        }
    }

    #[test]
    fn odd_configs_are_refused_by_name() {
        let refusals = [
            changed("tiny-bert", "is_decoder", json!(true)),
            changed(
                "tiny-electra",
                "position_embedding_type",
                json!("relative_key"),
            ),
            changed("tiny-electra", "is_decoder", json!(true)),
            changed("tiny-albert", "position_embedding_type", Value::Null),
            changed("tiny-albert", "num_hidden_groups", json!(0)),
            changed("tiny-albert", "num_hidden_layers", json!(2000)),
            changed("tiny-ernie", "task_type_vocab_size", json!(0)),
            changed("tiny-megatron", "is_decoder", json!(true)),
            changed("tiny-roformer", "rotary_value", json!(true)),
            changed("tiny-bart-nli", "is_encoder_decoder", json!(false)),
            changed("tiny-bart-nli", "tie_word_embeddings", json!(false)),
            changed("tiny-bart-nli", "decoder_start_token_id", json!(-1)),
            changed(
                "tiny-bart-nli",
                "architectures",
                json!(["BartForQuestionAnswering"]),
            ),
            changed("tiny-mpnet", "relative_attention_num_buckets", json!(16)),
            changed("tiny-mpnet", "num_attention_heads", json!(5)),
            changed("tiny-modernbert", "local_attention", json!(0)),
            changed("tiny-modernbert", "global_attn_every_n_layers", json!(0)),
            changed("tiny-modernbert", "num_attention_heads", json!(32)),
            changed(
                "tiny-modernbert",
                "rope_scaling",
                json!({"type": "yarn", "factor": 4.0}),
            ),
            changed(
                "tiny-modernbert",
                "rope_parameters",
                json!({"full_attention": {"rope_type": "linear"}}),
            ),
            changed("tiny-modernbert", "layer_types", json!(["full_attention"])),
            changed(
                "tiny-modernbert",
                "layer_types",
                json!(["full_attention", "chunked", "a", "b"]),
            ),
            changed("tiny-modernbert", "global_rope_theta", json!(0.0)),
            changed("tiny-modernbert", "hidden_activation", json!("mish")),
            changed("tiny-modernbert-cls", "classifier_pooling", json!("max")),
            changed("tiny-nomic", "prenorm", json!(true)),
            changed("tiny-nomic", "rotary_emb_interleaved", json!(true)),
            changed("tiny-nomic", "rotary_emb_fraction", json!(0.0)),
            changed("tiny-nomic", "rotary_emb_scale_base", json!(512)),
            changed("tiny-nomic", "rotary_scaling_factor", json!(0.5)),
            changed("tiny-nomic", "moe_every_n_layers", json!(2)),
            changed("tiny-nomic", "activation_function", json!("relu")),
            changed("tiny-gte", "rope_scaling", json!({"type": "ntk"})),
            changed(
                "tiny-gte",
                "rope_scaling",
                json!({"type": "ntk", "factor": 2.0, "mixed_b": 0.2}),
            ),
            changed(
                "tiny-gte",
                "rope_scaling",
                json!({"rope_type": "longrope", "factor": 2.0}),
            ),
            changed(
                "tiny-gte",
                "rope_scaling",
                json!({"rope_type": "default", "partial_rotary_factor": 0.5}),
            ),
            changed("tiny-gte", "layer_norm_type", json!("rms_norm")),
            changed("tiny-gte", "position_embedding_type", json!("absolute")),
            changed("tiny-gte", "pack_qkv", json!(false)),
            changed("tiny-gte", "logn_attention_scale", json!(true)),
            changed("tiny-jina", "feed_forward_type", json!("original")),
            changed("tiny-bert", "position_embedding_type", Value::Null),
            changed(
                "tiny-jina",
                "position_embedding_type",
                json!("relative_key"),
            ),
        ];
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `is_decoder` false, but found true
        expected `position_embedding_type` `absolute`, but found `relative_key`
        expected `is_decoder` false, but found true
        expected `position_embedding_type` `absolute`, but found null
        expected `num_hidden_groups` from 1 to 2097152, but found 0
        expected at most 1024 layers (`num_hidden_layers` times `inner_group_num`), but found 2000
        expected `task_type_vocab_size` from 1 to 2097152, but found 0
        expected `is_decoder` false, but found true
        expected `rotary_value` false, but found true
        expected `is_encoder_decoder` true, but found false
        expected `tie_word_embeddings` true, but found false
        expected `decoder_start_token_id` below 295, the `vocab_size`, but found -1
        expected BART with a label head (`…ForSequenceClassification`), but found `BartForQuestionAnswering`
        expected `relative_attention_num_buckets` 32, but found 16
        expected `hidden_size` to be a multiple of `num_attention_heads`, but found 32 and 5
        expected `local_attention` of at least 2, but found 0
        expected `global_attn_every_n_layers` from 1 to 4096, but found 0
        expected an even number of rotated values in a head, but found 1 of 1
        expected rotary positions without scaling (`default`), but found `yarn`
        expected rotary positions without scaling (`default`), but found `linear`
        expected `layer_types` of 4 layers, but found 1
        expected `layer_types` `full_attention` or `sliding_attention`, but found `chunked`
        expected a rotary base above 1, but found 0
        expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, `swish`, `tanh`, but found `mish`
        expected `classifier_pooling` `cls` or `mean`, but found `max`
        expected `prenorm` false, but found true
        expected `rotary_emb_interleaved` false, but found true
        expected an even number of rotated values in a head, but found 0 of 8
        expected no `rotary_emb_scale_base`, but found 512
        expected `rotary_scaling_factor` of at least 1, but found 0.5
        expected `num_experts` in `config.json`, but found none
        expected `activation_function` `swiglu`, `geglu` or `gelu`, but found `relu`
        expected a `factor` of at least 1 for `ntk` scaling, but found none
        expected `ntk` scaling without `mixed_b`, but found 0.2
        expected rotary positions without scaling (`default`), `ntk`, but found `longrope`
        expected rotary positions without `partial_rotary_factor`, but found 0.5
        expected `layer_norm_type` `layer_norm`, but found `rms_norm`
        expected `position_embedding_type` `rope`, but found `absolute`
        expected `pack_qkv` true, but found false
        expected `logn_attention_scale` false, but found true
        expected `feed_forward_type` `geglu` or `reglu`, but found `original`
        expected `position_embedding_type` `absolute`, but found null
        expected `position_embedding_type` `absolute`, but found `relative_key`
        ");
    }

    #[test]
    fn odd_configs_of_roberta_with_normalizations_before_layers_are_refused_by_name() {
        let refusals = [
            changed("tiny-xlm-roberta-xl", "is_decoder", json!(true)),
            changed(
                "tiny-xlm-roberta-xl",
                "position_embedding_type",
                json!("relative_key_query"),
            ),
            changed("tiny-roberta-prelayernorm", "is_decoder", json!(true)),
            changed(
                "tiny-roberta-prelayernorm",
                "position_embedding_type",
                Value::Null,
            ),
        ];
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `is_decoder` false, but found true
        expected `position_embedding_type` `absolute`, but found `relative_key_query`
        expected `is_decoder` false, but found true
        expected `position_embedding_type` `absolute`, but found null
        ");
    }

    #[test]
    fn odd_terms_of_deberta_are_refused_by_name() {
        let terms = [
            json!(["c2p", "p2p"]),
            json!(["c2p", "c2p"]),
            json!("P2C|p2p"),
        ];
        let refusals = terms.map(|terms| changed("tiny-deberta", "pos_att_type", terms));
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `pos_att_type` of `c2p` and `p2c`, or one of them, but found `c2p`, `p2p`
        expected `pos_att_type` of `c2p` and `p2c`, or one of them, but found `c2p`, `c2p`
        expected `pos_att_type` of `c2p` and `p2c`, or one of them, but found `p2c`, `p2p`
        ");
        let spaced = changed("tiny-deberta", "pos_att_type", json!("c2p | P2C")).unwrap();
        let listed = changed("tiny-deberta", "pos_att_type", json!(["c2p", "p2c"])).unwrap();
        assert_eq!(format!("{spaced:?}"), format!("{listed:?}"));
    }

    #[test]
    fn odd_experts_are_refused_by_name() {
        let refusals = [
            changed("tiny-nomic-moe", "moe_every_n_layers", json!(1)),
            changed("tiny-nomic-moe", "moe_top_k", json!(5)),
            changed(
                "tiny-nomic-moe",
                "moe_normalize_expert_weights",
                json!(true),
            ),
            changed("tiny-nomic-moe", "expert_choice_router", json!(true)),
            changed("tiny-nomic-moe", "num_shared_experts", json!(1)),
            changed("tiny-nomic-moe", "activation_function", json!("swiglu")),
        ];
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `moe_every_n_layers` from 2, `num_experts` up to 256 and `moe_top_k` up to their number, but found 1, 4 and 2
        expected `moe_every_n_layers` from 2, `num_experts` up to 256 and `moe_top_k` up to their number, but found 2, 4 and 5
        expected `moe_normalize_expert_weights` false, but found true
        expected `expert_choice_router` false, but found true
        expected `num_shared_experts` 0, but found 1
        expected `activation_function` `gelu` with experts, but found a gate
        ");
    }

    #[test]
    fn fields_that_a_family_does_not_have_change_nothing() {
        for (field, value) in [
            ("layer_norm_eps", json!(0.1)),
            ("hidden_act", json!("relu")),
            ("type_vocab_size", json!(2)),
        ] {
            let config = changed("tiny-distilbert", field, value).unwrap();
            let found = (config.epsilon, config.feed_forward.activation, config.types);
            assert_eq!(found, (1e-12, Activation::Gelu, 0), "{field}");
        }
    }

    #[test]
    fn epsilons_are_finite_and_not_negative() {
        let mut keys = BTreeSet::new();
        for fixture in fs::read_dir(models()).unwrap() {
            let fixture = fixture.unwrap().file_name().into_string().unwrap();
            for key in [
                "layer_norm_eps",
                "layer_norm_epsilon",
                "norm_eps",
                "rms_norm_eps",
            ] {
                let Ok(text) = fs::read(models().join(&fixture).join("config.json")) else {
                    continue;
                };
                let config = ConfigFile::new("config.json", serde_json::from_slice(&text).unwrap());
                let is_asked = read(&config).is_ok() && config.asked().contains(key);
                if !is_asked || !config.fields().contains_key(key) {
                    continue;
                }
                for (value, shown) in [(-1e-6, "-0.000001"), (1e39, "inf")] {
                    let refusal = changed(&fixture, key, json!(value)).unwrap_err();
                    let expected =
                        format!("expected a finite `{key}` of at least 0, but found {shown}");
                    assert_eq!(refusal.to_string(), expected, "{fixture}");
                }
                changed(&fixture, key, json!(0)).unwrap();
                keys.insert(key);
            }
        }
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn yarn_needs_turns_above_zero() {
        for key in ["beta_fast", "beta_slow"] {
            let scaling = json!({"rope_type": "yarn", "factor": 4.0, key: -1.0});
            let refusal = changed("tiny-qwen3", "rope_scaling", scaling).unwrap_err();
            assert!(
                refusal
                    .to_string()
                    .contains("expected finite angles for `yarn` scaling"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn scaling_is_named_by_either_field() {
        let both = json!({"type": "linear", "rope_type": "default"});
        let config = changed("tiny-qwen3", "rope_scaling", both).unwrap();
        assert_eq!(
            config.spans[0].rotary.as_ref().unwrap().scaling,
            Scaling::None
        );
        let refusal = changed(
            "tiny-qwen3",
            "rope_scaling",
            json!({"type": "ntk", "factor": 2.0}),
        );
        assert!(refusal.unwrap_err().to_string().contains("`ntk`"));
    }

    #[test]
    fn layers_of_modernbert_are_listed_or_counted() {
        let counted = changed("tiny-modernbert", "local_attention", json!(12)).unwrap();
        let spans = |config: &EncoderConfig| {
            let reaches = (0..4).map(|layer| config.spans[layer % config.spans.len()].window);
            reaches.collect::<Vec<_>>()
        };
        let (all, near) = (AttentionWindow::ALL, AttentionWindow::within(6));
        assert_eq!(spans(&counted), [all, near, near, all]);
        let types = [
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention",
        ];
        let listed = changed("tiny-modernbert", "layer_types", json!(types)).unwrap();
        assert_eq!(spans(&listed), spans(&counted));
        // As `transformers` 5 writes the bases.
        let bases = json!({
            "full_attention": { "rope_type": "default", "rope_theta": 5.0 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 7.0 },
        });
        let named = changed("tiny-modernbert", "rope_parameters", bases).unwrap();
        let base = |layer: usize| named.spans[layer].rotary.as_ref().unwrap().base;
        assert_eq!([base(0), base(1)], [5.0, 7.0]);
        let shared = changed("tiny-modernbert", "local_rope_theta", Value::Null).unwrap();
        assert_eq!(shared.spans[1].rotary, shared.spans[0].rotary);
    }

    #[test]
    fn defaults_are_those_of_the_config_classes() {
        const FIXTURES: [(&str, &str); 31] = [
            ("albert", "tiny-albert"),
            ("bart", "tiny-bart-nli"),
            ("bert", "tiny-bert"),
            ("camembert", "tiny-camembert-ner"),
            ("data2vec-text", "tiny-data2vec"),
            ("deberta", "tiny-deberta"),
            ("deberta-v2", "tiny-deberta-v2"),
            ("distilbert", "tiny-distilbert"),
            ("electra", "tiny-electra"),
            ("embedding_gemma2_text", "tiny-embedding-gemma2-text"),
            ("ernie", "tiny-ernie"),
            ("eurobert", "tiny-eurobert-cls"),
            ("gemma", "tiny-gemma-rank"),
            ("gemma2", "tiny-gemma2"),
            ("gemma3_text", "tiny-gemma3"),
            ("llama", "tiny-llama"),
            ("megatron-bert", "tiny-megatron"),
            ("mistral", "tiny-mistral"),
            ("mobilebert", "tiny-mobilebert"),
            ("modernbert", "tiny-modernbert-cls"),
            ("mpnet", "tiny-mpnet"),
            ("mt5", "tiny-mt5"),
            ("qwen2", "tiny-qwen2"),
            ("qwen3", "tiny-qwen3"),
            ("roberta", "tiny-roberta"),
            ("roberta-prelayernorm", "tiny-roberta-prelayernorm"),
            ("roformer", "tiny-roformer"),
            ("t5", "tiny-t5"),
            ("ultrabert", "tiny-ultrabert"),
            ("xlm-roberta", "tiny-xlm-roberta"),
            ("xlm-roberta-xl", "tiny-xlm-roberta-xl"),
        ];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let defaults = ["defaults.json", "newer_defaults.json"].map(|name| {
            let defaults = fs::read(folder.join("published").join(name)).unwrap();
            serde_json::from_slice::<Map<String, Value>>(&defaults).unwrap()
        });
        let defaults: Map<String, Value> = defaults.into_iter().flatten().collect();
        for (model_type, fixture) in FIXTURES {
            let text = fs::read(folder.join("models").join(fixture).join("config.json")).unwrap();
            let fields: Map<String, Value> = serde_json::from_slice(&text).unwrap();
            assert_eq!(fields["model_type"], model_type);
            for (key, default) in defaults[model_type].as_object().unwrap() {
                // Older files have `rope_theta` instead.
                if key == "rope_parameters" && fields.contains_key("rope_theta") {
                    continue;
                }
                // Follows from the fixture's other keys.
                if key == "true_hidden_size" {
                    continue;
                }
                let mut without = fields.clone();
                without.remove(key);
                let mut with = without.clone();
                with.insert(key.clone(), default.clone());
                let read = |fields| read(&ConfigFile::new("config.json", fields));
                // Some configs are invalid without the key.
                let Ok(without) = read(without) else { continue };
                let with = read(with).map(|config| format!("{config:?}"));
                assert_eq!(
                    format!("{without:?}"),
                    with.unwrap_or_default(),
                    "{model_type}: {key}"
                );
            }
        }
    }

    #[test]
    fn code_that_attends_to_all_is_known_by_any_of_its_classes() {
        for (fixture, class) in [
            (
                "tiny-lfm2-encoder",
                "modeling_lfm2_bidirectional.Lfm2BidirectionalForMaskedLM",
            ),
            (
                "tiny-voyage",
                "modeling_qwen3_bidirectional.Qwen3BidirectionalForMaskedLM",
            ),
        ] {
            let read = |map| format!("{:?}", changed(fixture, "auto_map", map).unwrap());
            let model = json!({ "AutoModel": class.replace("ForMaskedLM", "Model") });
            let read_with_head = read(json!({ "AutoModelForMaskedLM": class }));
            assert_eq!(read_with_head, read(model), "{fixture}");
            assert_ne!(read_with_head, read(json!({})), "{fixture}");
        }
    }

    #[test]
    fn nomic_reads_both_forms_of_its_config() {
        let rotary = |config: EncoderConfig| config.spans[0].rotary.clone().unwrap();
        let own = rotary(changed("tiny-nomic", "causal", json!(false)).unwrap());
        assert_eq!(
            own.scaling,
            Scaling::DynamicNtk {
                factor: 2.0,
                positions: 64
            }
        );
        let config = json!({
            "model_type": "nomic_bert", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 200, "vocab_size": 70, "hidden_act": "silu", "max_position_embeddings": 64,
            "rope_parameters": { "rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0 },
        });
        let fields = config.as_object().cloned().unwrap();
        let config = read(&ConfigFile::new("config.json", fields)).unwrap();
        assert_eq!((config.vocabulary, config.feed_forward.width), (70, 200));
        assert_eq!(rotary(config), own);
    }
}
