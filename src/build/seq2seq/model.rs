//! The shape of a sequence-to-sequence model of any family.

use crate::build::layers::Activation;

/// An encoder, and a decoder that generates one token at a time.
#[derive(Debug)]
pub(in crate::build) struct Seq2SeqModel {
    /// The class that the weights were trained as.
    pub(in crate::build) architecture: String,
    /// The width of a token's vector.
    pub(in crate::build) hidden: usize,
    pub(in crate::build) encoder: Stack,
    pub(in crate::build) decoder: Stack,
    pub(in crate::build) tables: Tables,
    pub(in crate::build) activation: Activation,
    pub(in crate::build) norms: Norms,
    /// The epsilon of normalisations.
    pub(in crate::build) epsilon: f32,
    pub(in crate::build) positions: Positions,
    /// The factor of embeddings before positions are added.
    pub(in crate::build) scale: f32,
    pub(in crate::build) memory: Memory,
    /// Whether the model was trained to run in int8, with one scale for all tokens of a text.
    pub(in crate::build) is_trained_in_int8: bool,
    /// Whether the input of the decoder's first step is a vector of zeros in place of a token.
    pub(in crate::build) starts_empty: bool,
    /// Whether each text has a shortlist of tokens that can be generated.
    pub(in crate::build) has_shortlist: bool,
}

/// The layers of an encoder or a decoder.
#[derive(Clone, Copy, Debug)]
pub(in crate::build) struct Stack {
    pub(in crate::build) layers: usize,
    pub(in crate::build) heads: usize,
    pub(in crate::build) intermediate: usize,
}

/// A matrix with one row per token, by its whole name in the weights.
#[derive(Clone, Debug)]
pub(in crate::build) struct Table {
    pub(in crate::build) name: String,
    pub(in crate::build) rows: usize,
}

/// The embeddings of source and target, and the output matrix; in most models they are the same.
#[derive(Clone, Debug)]
pub(in crate::build) struct Tables {
    pub(in crate::build) source: Table,
    pub(in crate::build) target: Table,
    pub(in crate::build) output: Table,
    /// The whole name of the bias of the logits, if the model has one.
    pub(in crate::build) bias: Option<String>,
}

/// The place of normalisations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Norms {
    /// Before each part of a layer, and after the last layer.
    Before,
    /// After each part of a layer.
    After,
}

/// The decoder's memory of the tokens it has generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Memory {
    /// The keys and values of all tokens.
    Attention,
    /// One vector per layer (the SSRU of Marian's small models).
    Recurrent,
}

/// Sinusoidal positions: sines in the first half of a vector, cosines in the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) struct Positions {
    /// The number of tokens that have positions.
    pub(in crate::build) length: usize,
    pub(in crate::build) waves: Waves,
    /// The id that has no position, and after which positions count (M2M100); they count from 0 if none.
    pub(in crate::build) padding: Option<i64>,
}

/// The wave lengths of the sines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Waves {
    /// The longest is 10000 radians: exponents are divided by one less than the number of waves.
    ToTheEnd,
    /// The longest is one step short of that (the form in the paper).
    ShortOfTheEnd,
}

impl Positions {
    /// The row of a text's first token.
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

    /// An angle, with the rounding of `transformers`, which matters from about a thousand tokens on.
    fn angle(&self, position: usize, place: usize, half: usize) -> f64 {
        match self.waves {
            Waves::ToTheEnd => {
                let step = 10000_f64.ln() / half.saturating_sub(1).max(1) as f64;
                let frequency = (place as f32 * -(step as f32)).exp();
                f64::from(position as f32 * frequency)
            }
            Waves::ShortOfTheEnd => position as f64 / 10000_f64.powf(place as f64 / half.max(1) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_equal_those_of_the_families() {
        let marian = Positions { length: 3, waves: Waves::ShortOfTheEnd, padding: None };
        let table = marian.table(4);
        assert_eq!(&table[..4], [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(table[5], 0.01_f64.sin() as f32, "10000^(2/4) is 100");
        let m2m100 = Positions { length: 2, waves: Waves::ToTheEnd, padding: Some(1) };
        let table = m2m100.table(4);
        assert_eq!(m2m100.rows(), 4);
        assert_eq!(&table[4..8], [0.0; 4], "padding has no position");
        assert!((table[9] - (2.0_f32 * 0.0001).sin()).abs() < 1e-7, "the longest wave is 10000");
    }
}
