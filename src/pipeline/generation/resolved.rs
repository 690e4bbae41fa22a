//! A search in the words of `generate` again, for whoever generates elsewhere.

use super::{config::GenerationConfig, settings::GenerationOptions};

impl GenerationConfig {
    /// The options that ask any model for this search: nothing is left to its settings.
    pub fn options(&self) -> GenerationOptions {
        let sampling = self.sampling.as_ref();
        GenerationOptions {
            max_length: Some(self.max_length),
            max_new_tokens: None,
            min_length: Some(self.min_length),
            min_new_tokens: None,
            num_beams: Some(self.beams),
            num_return_sequences: Some(self.sequences),
            length_penalty: Some(self.length_penalty),
            early_stopping: Some(self.early_stopping),
            no_repeat_ngram_size: Some(self.no_repeat_ngram_size),
            repetition_penalty: Some(self.repetition_penalty),
            bad_words_ids: Some(self.bad_words.clone()),
            suppress_tokens: Some(self.suppressed.clone()),
            begin_suppress_tokens: Some(self.suppressed_first.clone()),
            forced_bos_token_id: self.forced_first,
            forced_eos_token_id: self.forced_last,
            renormalize_logits: Some(self.renormalise),
            do_sample: sampling.map(|_| true),
            temperature: sampling.map(|sampling| sampling.temperature),
            top_k: sampling.map(|sampling| sampling.top_k),
            top_p: sampling.map(|sampling| sampling.top_p),
            seed: sampling.and_then(|sampling| sampling.seed),
        }
    }

    /// Whether the length of a target follows that of its source.
    pub fn follows_source(&self) -> bool {
        self.length_factor.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{config::Bounds, settings::GenerationSettings};
    use super::*;

    #[test]
    fn options_of_a_search_ask_for_the_same_search() {
        let settings: GenerationSettings = serde_json::from_value(json!({
            "decoder_start_token_id": 2, "eos_token_ids": [2], "pad_token_id": 1,
            "defaults": { "num_beams": 5, "max_new_tokens": 30, "early_stopping": true },
        }))
        .unwrap();
        let bounds = Bounds { vocabulary: 100, longest: 64 };
        let of = |options: &GenerationOptions| GenerationConfig::new(&settings, options, bounds).unwrap();
        for asked in [
            json!({}),
            json!({ "num_beams": 1, "max_length": 9, "bad_words_ids": [[7, 8]], "forced_bos_token_id": 5 }),
            json!({ "num_beams": 1, "do_sample": true, "top_p": 0.5, "seed": 3 }),
            json!({ "early_stopping": "never", "min_new_tokens": 4, "suppress_tokens": [9] }),
        ] {
            let search = of(&serde_json::from_value(asked).unwrap());
            let plain = GenerationSettings { defaults: GenerationOptions::default(), ..settings.clone() };
            assert_eq!(GenerationConfig::new(&plain, &search.options(), bounds).unwrap(), search);
        }
    }
}
