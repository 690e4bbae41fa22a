//! Sequence-to-sequence model shape, for any family.

use super::weight_names::{MT5, Names, T5};
use crate::{
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::{Activation, Buckets, NormKind},
};
use kivu::{Error, Result, error::quoted};

const SHARED: &str = "shared.weight";
const SOURCE: &str = "encoder.embed_tokens.weight";
const TARGET: &str = "decoder.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";
const BIAS: &str = "final_logits_bias";

/// An encoder, and a decoder that generates one token at a time.
#[derive(Debug)]
pub struct Seq2SeqModel {
    /// Class that the weights were trained as.
    pub architecture: String,
    /// Width of a token's vector.
    pub hidden: usize,
    pub encoder: Stack,
    pub decoder: Stack,
    pub tables: Tables,
    pub names: Names,
    /// Whether linear layers have biases.
    pub has_biases: bool,
    pub activation: Activation,
    /// Whether the feed-forward part multiplies its activated half by another.
    pub is_gated: bool,
    pub norms: Norms,
    pub norm: NormKind,
    /// Normalization epsilon.
    pub epsilon: f32,
    pub positions: Positions,
    /// Factor for embeddings before positions are added.
    pub scale: f32,
    /// Whether embeddings are normalized after positions are added.
    pub normalizes_embeddings: bool,
    /// Factor for attention scores; by default one divided by the root of the head width.
    pub attention_scale: Option<f32>,
    /// Factor for the decoder's vectors before the output matrix.
    pub output_scale: f32,
    pub memory: Memory,
    /// Whether the model was trained to run in int8, with one scale for all tokens in a text.
    pub is_trained_in_int8: bool,
    /// Whether the decoder's first step reads a zero vector in place of a token.
    pub starts_empty: bool,
    /// Whether each text has a shortlist of tokens that can be generated.
    pub has_shortlist: bool,
}

/// Layers in an encoder or a decoder.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    pub layers: usize,
    pub heads: usize,
    /// Head width.
    pub head: usize,
    pub intermediate: usize,
}

impl Stack {
    /// Width of all heads together.
    pub fn width(self) -> usize {
        self.heads * self.head
    }
}

/// A matrix with one row per token, by its whole name in the weights.
#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    pub rows: usize,
}

/// Source and target embeddings, and the output matrix; in most models they are the same.
#[derive(Clone, Debug)]
pub struct Tables {
    pub source: Table,
    pub target: Table,
    pub output: Table,
    /// Full name of the logit bias, if the model has one.
    pub bias: Option<String>,
}

impl Tables {
    /// Finds the token tables. A matrix that `transformers` shares between several tables is in files under any of
    /// their names.
    pub fn find(
        config: &ConfigFile,
        weights: &Weights,
        [rows, target_rows]: [usize; 2],
    ) -> Result<Self> {
        const ALL: [&str; 4] = [SHARED, SOURCE, TARGET, OUTPUT];
        let is_shared = config.is_set_or("share_encoder_decoder_embeddings", true)?;
        let is_tied = config.is_set_or("tie_word_embeddings", config.model_type() != MT5)?
            && !(is_newer_t5(config)? && weights.has(OUTPUT));
        let [sources, targets, outputs]: [&[&str]; 3] = match (is_shared, is_tied) {
            (true, true) => [&ALL; 3],
            // Its encoder and its decoder have no tables of their own.
            (true, false) if [T5, MT5].contains(&config.model_type()) => {
                [&ALL[..3], &ALL[..3], &ALL[3..]]
            }
            (false, true) => [&[SOURCE], &[TARGET, OUTPUT], &[TARGET, OUTPUT]],
            (_, false) => [&[SOURCE], &[TARGET], &[OUTPUT]],
        };
        let table = |names: &[&str], rows| {
            let whole = |name: &&str| match *name {
                OUTPUT => OUTPUT.to_owned(),
                name => format!("{}{name}", weights.prefix),
            };
            let names: Vec<String> = names.iter().map(whole).collect();
            match weights.shared(&names)? {
                Some(name) => Ok(Table {
                    name: name.to_owned(),
                    rows,
                }),
                None => Err(Error::model(format!(
                    "expected one of the weights {}, but found none",
                    quoted(&names)
                ))),
            }
        };
        Ok(Self {
            source: table(sources, rows)?,
            target: table(targets, target_rows)?,
            output: table(outputs, target_rows)?,
            bias: weights.has(BIAS).then(|| BIAS.to_owned()),
        })
    }
}

/// Whether version 5 of `transformers` wrote the config of a T5 or mT5: it then says that tables are tied, also if the
/// file has another output matrix, which is read.
pub fn is_newer_t5(config: &ConfigFile) -> Result<bool> {
    let version: Option<String> = config.get("transformers_version")?;
    let is_newer = version.is_some_and(|version| version.starts_with("5."));
    Ok(is_newer && [T5, MT5].contains(&config.model_type()))
}

/// Position of the normalizations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Before each sublayer, and after the last layer.
    Before,
    /// After each sublayer.
    After,
}

/// How the decoder remembers generated tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Keys and values for all tokens.
    Attention,
    /// One vector per layer (SSRU, in Marian's small models).
    Recurrent,
}

/// How a model represents token positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Computed vectors, added to embeddings.
    Sinusoidal(Sinusoids),
    /// Learned vectors, in a table for each half; the first `unused` rows have no token.
    Learned { length: usize, unused: usize },
    /// Values per token distance, added to attention scores in all layers.
    Distances(Distances),
}

/// Values per token distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distances {
    pub buckets: Buckets,
    /// Maximum number of tokens in a source and in a target.
    pub lengths: [usize; 2],
}

/// Sinusoidal positions: sines in the first half of a vector, cosines in the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sinusoids {
    /// Number of tokens with positions.
    pub length: usize,
    pub waves: Waves,
    /// The id without a position, after which positions count (M2M100); if `None`, they count from 0.
    pub padding: Option<i64>,
}

/// Wavelengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waves {
    /// The longest is 10000 radians: exponents are divided by the number of waves minus one.
    ToTheEnd,
    /// The longest is one step short of 10000 radians (as in the paper).
    ShortOfTheEnd,
}

impl Sinusoids {
    /// Row for a text's first token.
    pub fn first(&self) -> i64 {
        self.padding.map_or(0, |padding| padding + 1)
    }

    pub fn rows(&self) -> usize {
        self.length + usize::try_from(self.first()).unwrap_or(0)
    }

    /// The table, with `width` values per row.
    pub fn table(&self, width: usize) -> Vec<f32> {
        let half = width / 2;
        let mut table = vec![0.0; self.rows() * width];
        for (position, row) in table.chunks_exact_mut(width).enumerate() {
            if self.padding == Some(position as i64) {
                continue;
            }
            let (sines, cosines) = row.split_at_mut(half);
            for (place, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
                let angle = self.angle(position, place, half);
                (*sine, *cosine) = (angle.sin() as f32, angle.cos() as f32);
            }
        }
        table
    }

    /// An angle, rounded as in `transformers`, which matters from about a thousand tokens on.
    fn angle(&self, position: usize, place: usize, half: usize) -> f64 {
        match self.waves {
            Waves::ToTheEnd => {
                let step = 10000_f64.ln() / half.saturating_sub(1).max(1) as f64;
                let frequency = (place as f32 * -(step as f32)).exp();
                f64::from(position as f32 * frequency)
            }
            Waves::ShortOfTheEnd => {
                position as f64 / 10000_f64.powf(place as f64 / half.max(1) as f64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::weights::Weight;

    #[test]
    fn untied_tables_are_those_of_their_half() {
        let tensors = [SHARED, SOURCE, TARGET, OUTPUT].map(|name| {
            let weight = Weight {
                shape: vec![1, 1],
                values: vec![0.0],
            };
            (name.to_owned(), weight)
        });
        let weights = Weights::of_tensors(tensors.into(), String::new());
        let find = |is_tied: bool| {
            let fields = [("tie_word_embeddings".to_owned(), is_tied.into())]
                .into_iter()
                .collect();
            let tables =
                Tables::find(&ConfigFile::new("config.json", fields), &weights, [1, 1]).unwrap();
            [tables.source.name, tables.target.name, tables.output.name]
        };
        assert_eq!(find(true), [SHARED; 3]);
        assert_eq!(find(false), [SOURCE, TARGET, OUTPUT]);
    }

    #[test]
    fn tables_have_the_names_that_transformers_shares() {
        let find = |config: serde_json::Value, tensors: &[(&str, f32)]| {
            let tensors = tensors.iter().map(|(name, value)| {
                let weight = Weight {
                    shape: vec![1, 1],
                    values: vec![*value],
                };
                ((*name).to_owned(), weight)
            });
            let weights = Weights::of_tensors(tensors.collect(), String::new());
            let config = ConfigFile::new("config.json", config.as_object().cloned().unwrap());
            Tables::find(&config, &weights, [1, 1])
                .map(|it| [it.source.name, it.target.name, it.output.name])
                .map_err(|error| error.to_string())
        };
        let tied = json!({"model_type": "m2m_100"});
        for name in [SHARED, SOURCE, TARGET, OUTPUT] {
            assert_eq!(find(tied.clone(), &[(name, 1.0)]).unwrap(), [name; 3]);
        }
        let t5 = json!({"model_type": "t5", "tie_word_embeddings": false});
        for name in [SHARED, SOURCE, TARGET] {
            let found = find(t5.clone(), &[(name, 1.0), (OUTPUT, 2.0)]);
            assert_eq!(found.unwrap(), [name, name, OUTPUT]);
        }
        let newer = json!({"model_type": "mt5", "tie_word_embeddings": true, "transformers_version": "5.23.0"});
        let found = find(newer.clone(), &[(SHARED, 1.0), (OUTPUT, 2.0)]);
        assert_eq!(found.unwrap(), [SHARED, SHARED, OUTPUT]);
        assert_eq!(find(newer, &[(SHARED, 1.0)]).unwrap(), [SHARED; 3]);
        let own = json!({"model_type": "marian", "share_encoder_decoder_embeddings": false});
        let found = find(own, &[(SOURCE, 1.0), (OUTPUT, 2.0)]);
        assert_eq!(found.unwrap(), [SOURCE, OUTPUT, OUTPUT]);
        let untied = json!({"model_type": "bart", "tie_word_embeddings": false});
        let refusals = [
            find(tied.clone(), &[(SHARED, 1.0), (OUTPUT, 2.0)]),
            find(tied, &[(SOURCE, 1.0), (TARGET, 2.0)]),
            find(t5.clone(), &[(SHARED, 1.0), (SOURCE, 2.0), (OUTPUT, 3.0)]),
            find(t5.clone(), &[(SHARED, 1.0)]),
            find(t5, &[(OUTPUT, 1.0)]),
            find(untied.clone(), &[(SHARED, 1.0), (OUTPUT, 1.0)]),
            find(untied, &[(SOURCE, 1.0), (TARGET, 1.0)]),
        ];
        insta::assert_snapshot!(refusals.map(Result::unwrap_err).join("\n"), @r"
        `lm_head.weight` and `shared.weight` are one matrix in this model (`tie_word_embeddings`), but the file has two different ones; save the model again with `save_pretrained`
        `decoder.embed_tokens.weight` and `encoder.embed_tokens.weight` are one matrix in this model (`tie_word_embeddings`), but the file has two different ones; save the model again with `save_pretrained`
        `encoder.embed_tokens.weight` and `shared.weight` are one matrix in this model (`tie_word_embeddings`), but the file has two different ones; save the model again with `save_pretrained`
        expected one of the weights `lm_head.weight`, but found none
        expected one of the weights `shared.weight`, `encoder.embed_tokens.weight`, `decoder.embed_tokens.weight`, but found none
        expected one of the weights `encoder.embed_tokens.weight`, but found none
        expected one of the weights `lm_head.weight`, but found none
        ");
    }

    #[test]
    fn positions_equal_those_of_the_families() {
        let marian = Sinusoids {
            length: 3,
            waves: Waves::ShortOfTheEnd,
            padding: None,
        };
        let table = marian.table(4);
        assert_eq!(&table[..4], [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(table[5], 0.01_f64.sin() as f32, "10000^(2/4) is 100");
        let m2m100 = Sinusoids {
            length: 2,
            waves: Waves::ToTheEnd,
            padding: Some(1),
        };
        let table = m2m100.table(4);
        assert_eq!(m2m100.rows(), 4);
        assert_eq!(&table[4..8], [0.0; 4], "padding has no position");
        assert!(
            (table[9] - (2.0_f32 * 0.0001).sin()).abs() < 1e-7,
            "the longest wave is 10000"
        );
    }
}
