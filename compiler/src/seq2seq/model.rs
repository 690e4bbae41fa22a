//! Sequence-to-sequence model shape, for any family.

use super::names::{MT5, Names};
use crate::{
    config::ConfigFile,
    layers::{Activation, Buckets, NormKind},
    weights::Weights,
};
use kivu::error::{Error, Result, quoted};

const SHARED: &str = "shared.weight";
const SOURCE: &str = "encoder.embed_tokens.weight";
const TARGET: &str = "decoder.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";
const BIAS: &str = "final_logits_bias";

/// An encoder, and a decoder that generates one token at a time.
#[derive(Debug)]
pub(crate) struct Seq2SeqModel {
    /// Class that the weights were trained as.
    pub(crate) architecture: String,
    /// Width of a token's vector.
    pub(crate) hidden: usize,
    pub(crate) encoder: Stack,
    pub(crate) decoder: Stack,
    pub(crate) tables: Tables,
    pub(crate) names: Names,
    /// Whether linear layers have biases.
    pub(crate) has_biases: bool,
    pub(crate) activation: Activation,
    /// Whether the feed-forward part multiplies its activated half by another.
    pub(crate) is_gated: bool,
    pub(crate) norms: Norms,
    pub(crate) norm: NormKind,
    /// Normalization epsilon.
    pub(crate) epsilon: f32,
    pub(crate) positions: Positions,
    /// Factor for embeddings before positions are added.
    pub(crate) scale: f32,
    /// Whether embeddings are normalized after positions are added.
    pub(crate) normalizes_embeddings: bool,
    /// Factor for attention scores; by default one divided by the root of the head width.
    pub(crate) attention_scale: Option<f32>,
    /// Factor for the decoder's vectors before the output matrix.
    pub(crate) output_scale: f32,
    pub(crate) memory: Memory,
    /// Whether the model was trained to run in int8, with one scale for all tokens in a text.
    pub(crate) is_trained_in_int8: bool,
    /// Whether the decoder's first step reads a zero vector in place of a token.
    pub(crate) starts_empty: bool,
    /// Whether each text has a shortlist of tokens that can be generated.
    pub(crate) has_shortlist: bool,
}

/// Layers in an encoder or a decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Head width.
    pub(crate) head: usize,
    pub(crate) intermediate: usize,
}

impl Stack {
    /// Width of all heads together.
    pub(super) fn width(self) -> usize {
        self.heads * self.head
    }
}

/// A matrix with one row per token, by its whole name in the weights.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) rows: usize,
}

/// Source and target embeddings, and the output matrix; in most models they are the same.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) source: Table,
    pub(crate) target: Table,
    pub(crate) output: Table,
    /// Full name of the logit bias, if the model has one.
    pub(crate) bias: Option<String>,
}

impl Tables {
    /// Finds the token tables. Files with tied matrices have one of them, under any of their names.
    pub(super) fn find(
        config: &ConfigFile,
        weights: &Weights,
        [rows, target_rows]: [usize; 2],
    ) -> Result<Self> {
        let table = |names: &[&str], rows| {
            let whole = |name: &&str| match *name {
                OUTPUT => OUTPUT.to_owned(),
                name => format!("{}{name}", weights.prefix),
            };
            let names: Vec<String> = names.iter().map(whole).collect();
            match names.iter().find(|name| weights.has(name)) {
                Some(name) => Ok(Table {
                    name: name.clone(),
                    rows,
                }),
                None => Err(Error::model(format!(
                    "expected one of the weights {}, but found none",
                    quoted(&names)
                ))),
            }
        };
        let is_shared = config.is_set_or("share_encoder_decoder_embeddings", true)?;
        let is_untied = !config.is_set_or("tie_word_embeddings", config.model_type() != MT5)?;
        let (sources, targets): (&[&str], &[&str]) = match is_shared {
            true if is_untied => (&[SOURCE, SHARED, TARGET], &[TARGET, SHARED, SOURCE]),
            true => (
                &[SHARED, SOURCE, TARGET, OUTPUT],
                &[SHARED, TARGET, SOURCE, OUTPUT],
            ),
            false => (&[SOURCE], &[TARGET, OUTPUT]),
        };
        let (source, target) = (table(sources, rows)?, table(targets, target_rows)?);
        let has_own_output = is_untied && weights.has(OUTPUT);
        let output = if has_own_output {
            table(&[OUTPUT], target_rows)?
        } else {
            target.clone()
        };
        Ok(Self {
            source,
            target,
            output,
            bias: weights.has(BIAS).then(|| BIAS.to_owned()),
        })
    }
}

/// Position of the normalizations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norms {
    /// Before each sublayer, and after the last layer.
    Before,
    /// After each sublayer.
    After,
}

/// How the decoder remembers generated tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Keys and values for all tokens.
    Attention,
    /// One vector per layer (SSRU, in Marian's small models).
    Recurrent,
}

/// How a model represents token positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Positions {
    /// Computed vectors, added to embeddings.
    Sinusoidal(Sinusoids),
    /// Learned vectors, in a table for each half; the first `unused` rows have no token.
    Learned { length: usize, unused: usize },
    /// Values per token distance, added to attention scores in all layers.
    Distances(Distances),
}

/// Values per token distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distances {
    pub(crate) buckets: Buckets,
    /// Maximum number of tokens in a source and in a target.
    pub(crate) lengths: [usize; 2],
}

/// Sinusoidal positions: sines in the first half of a vector, cosines in the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sinusoids {
    /// Number of tokens with positions.
    pub(crate) length: usize,
    pub(crate) waves: Waves,
    /// The id without a position, after which positions count (M2M100); if `None`, they count from 0.
    pub(crate) padding: Option<i64>,
}

/// Wavelengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waves {
    /// The longest is 10000 radians: exponents are divided by the number of waves minus one.
    ToTheEnd,
    /// The longest is one step short of 10000 radians (as in the paper).
    ShortOfTheEnd,
}

impl Sinusoids {
    /// Row for a text's first token.
    pub(super) fn first(&self) -> i64 {
        self.padding.map_or(0, |padding| padding + 1)
    }

    pub(super) fn rows(&self) -> usize {
        self.length + usize::try_from(self.first()).unwrap_or(0)
    }

    /// The table, with `width` values per row.
    pub(super) fn table(&self, width: usize) -> Vec<f32> {
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
    use super::*;
    use crate::weights::Weight;

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
