//! Keys in `generation_config.json`, and generation keys in `config.json`.

use super::rules::{
    Rules, Unused,
    Values::{Any, Only},
};

pub const GENERATION: Rules = Rules {
    read: &[&[
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "decoder_start_token_id",
        "do_sample",
        "early_stopping",
        "eos_token_id",
        "epsilon_cutoff",
        "eta_cutoff",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "min_p",
        "no_repeat_ngram_size",
        "num_beams",
        "num_return_sequences",
        "pad_token_id",
        "renormalize_logits",
        "repetition_penalty",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ]],
    unused: &[
        &[
            // Records of how the file was written.
            ("_from_model_config", Any),
            ("_name_or_path", Any),
            ("transformers_version", Any),
            // Implementation choices without effect on results.
            ("cache_config", Any),
            ("cache_implementation", Any),
            ("compile_config", Any),
            ("disable_compile", Any),
            ("low_memory", Any),
            ("prefill_chunk_size", Any),
            ("return_legacy_cache", Any),
            ("use_cache", Only("[true, false]")),
            // For a second model that drafts texts.
            ("assistant_confidence_threshold", Any),
            ("assistant_lookbehind", Any),
            ("is_assistant", Any),
            ("max_matching_ngram_size", Any),
            ("num_assistant_tokens", Any),
            ("num_assistant_tokens_schedule", Any),
            ("target_lookbehind", Any),
            // `generate` outputs besides the text.
            ("output_attentions", Any),
            ("output_hidden_states", Any),
            ("output_logits", Any),
            ("output_scores", Any),
            ("return_dict_in_generate", Any),
        ],
        UNSUPPORTED,
    ],
    nested: &[],
};

/// Unsupported options that change results, with the values that turn them off.
const UNSUPPORTED: &[Unused] = &[
    ("assistant_early_exit", Only("[]")),
    ("constraints", Only("[[]]")),
    ("diversity_penalty", Only("[0.0]")),
    ("dola_layers", Only("[]")),
    ("encoder_no_repeat_ngram_size", Only("[0]")),
    ("encoder_repetition_penalty", Only("[1.0]")),
    ("exponential_decay_length_penalty", Only("[]")),
    ("force_words_ids", Only("[[]]")),
    ("forced_decoder_ids", Only("[[]]")),
    ("guidance_scale", Only("[1.0]")),
    ("max_time", Only("[]")),
    ("num_beam_groups", Only("[1]")),
    ("penalty_alpha", Only("[0.0]")),
    ("prompt_lookup_num_tokens", Only("[]")),
    ("remove_invalid_values", Only("[false]")),
    ("sequence_bias", Only("[{}]")),
    ("stop_strings", Only("[[]]")),
    ("token_healing", Only("[false]")),
    ("top_h", Only("[]")),
    ("watermarking_config", Only("[]")),
];

/// One task's settings in `task_specific_params`.
pub const PREFIX: Rules = Rules {
    read: &[&["prefix"]],
    unused: &[],
    nested: &[],
};

/// Generation keys in the `config.json` of a model that does not generate, or that has a `generation_config.json`:
/// older `transformers` versions write them into all files.
pub const WITHOUT_GENERATION: &[Unused] = &[
    ("bad_words_ids", Any),
    ("begin_suppress_tokens", Any),
    ("diversity_penalty", Any),
    ("do_sample", Any),
    ("early_stopping", Any),
    ("encoder_no_repeat_ngram_size", Any),
    ("exponential_decay_length_penalty", Any),
    ("forced_bos_token_id", Any),
    ("forced_eos_token_id", Any),
    ("length_penalty", Any),
    ("max_length", Any),
    ("max_new_tokens", Any),
    ("min_length", Any),
    ("min_new_tokens", Any),
    ("no_repeat_ngram_size", Any),
    ("num_beam_groups", Any),
    ("num_beams", Any),
    ("num_return_sequences", Any),
    ("output_scores", Any),
    ("remove_invalid_values", Any),
    ("repetition_penalty", Any),
    ("return_dict_in_generate", Any),
    ("suppress_tokens", Any),
    ("temperature", Any),
    ("top_k", Any),
    ("top_p", Any),
    ("typical_p", Any),
];

/// [`WITHOUT_GENERATION`] as rules.
pub const IGNORED: Rules = Rules {
    read: &[&[
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
    ]],
    unused: &[WITHOUT_GENERATION],
    nested: &[],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::keys::rules::{Allowed, Document};
    use kivu::{error::Result, pipeline::generation::GenerationOptions};

    fn check(fields: &Value) -> Result<()> {
        let fields = fields.as_object().cloned().unwrap();
        Document {
            name: "generation_config.json".to_owned(),
            fields,
            asked: BTreeSet::new(),
        }
        .check(&[&GENERATION], &mut Allowed::new(&[]))
    }

    #[test]
    fn unsupported_options_are_refused() {
        let unused = json!({"penalty_alpha": null, "guidance_scale": 1.0, "sequence_bias": null});
        check(&unused).unwrap();
        let refusals = [
            json!({"exponential_decay_length_penalty": [2, 1.5]}),
            json!({"num_beam_groups": 2}),
            json!({"use_cache": 0}),
            json!({"top_h": 0.4}),
            json!({"watermarking_config": {"greenlist_ratio": 0.25}}),
        ];
        let refusals = refusals.map(|fields| check(&fields).unwrap_err().to_string());
        let refusals =
            refusals.map(|refusal| refusal.split_once("; use `--allow").unwrap().0.to_owned());
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected no `exponential_decay_length_penalty` in `generation_config.json`, but found `exponential_decay_length_penalty` [2,1.5]
        expected `num_beam_groups` `1` in `generation_config.json`, but found `num_beam_groups` 2
        expected `use_cache` `true`, `false` in `generation_config.json`, but found `use_cache` 0
        expected no `top_h` in `generation_config.json`, but found `top_h` 0.4
        expected no `watermarking_config` in `generation_config.json`, but found `watermarking_config` {"greenlist_ratio":0.25}
        "#);
    }

    #[test]
    fn all_options_of_requests_are_read() {
        // Only requests can set a seed.
        for name in GenerationOptions::names()
            .into_iter()
            .filter(|name| name != "seed")
        {
            assert!(GENERATION.reads(&name), "{name}");
        }
    }
}
