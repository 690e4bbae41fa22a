//! A translation model as its graphs need to know it, whatever family it is of.

use crate::{
    build::{layers::Activation, weights::Weights},
    error::{Error, Result},
};

/// An encoder, and a decoder that writes one token at a time.
#[derive(Debug)]
pub(in crate::build) struct TranslationModel {
    /// The class that the weights were made with.
    pub(in crate::build) architecture: String,
    /// The width of a token's vector.
    pub(in crate::build) hidden: usize,
    pub(in crate::build) encoder: Stack,
    pub(in crate::build) decoder: Stack,
    /// The whole names of the matrices, a row a token, of what is read, what is written, and what is chosen from.
    pub(in crate::build) tables: Tables,
    pub(in crate::build) activation: Activation,
    pub(in crate::build) norms: Norms,
    /// What keeps a normalisation from dividing by zero.
    pub(in crate::build) epsilon: f32,
    pub(in crate::build) positions: Positions,
    /// What an embedding is multiplied by before its position is added.
    pub(in crate::build) scale: f32,
    pub(in crate::build) memory: Memory,
    /// Whether it was trained to run in 8-bit integers, with one scale for all tokens of a text.
    pub(in crate::build) trained_in_integers: bool,
    /// Whether the decoder's first step is given no token at all, but a vector of zeros.
    pub(in crate::build) starts_empty: bool,
    /// Whether the request says which tokens can be written at all.
    pub(in crate::build) has_shortlist: bool,
}

/// The layers of one half of a model.
#[derive(Clone, Copy, Debug)]
pub(in crate::build) struct Stack {
    pub(in crate::build) layers: usize,
    pub(in crate::build) heads: usize,
    pub(in crate::build) intermediate: usize,
}

/// A matrix of one row a token, by its whole name in the weights.
#[derive(Clone, Debug)]
pub(in crate::build) struct Table {
    pub(in crate::build) name: String,
    pub(in crate::build) rows: usize,
}

/// The matrices that stand between tokens and vectors; mostly they are one and the same.
#[derive(Clone, Debug)]
pub(in crate::build) struct Tables {
    pub(in crate::build) source: Table,
    pub(in crate::build) target: Table,
    pub(in crate::build) output: Table,
    /// The whole name of what is added to the logits, if anything is.
    pub(in crate::build) bias: Option<String>,
}

/// Where vectors are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Norms {
    /// Before each part of a layer, and once more after the last layer.
    Before,
    /// After each part of a layer.
    After,
}

/// How the decoder remembers what it has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Memory {
    /// By attending to the keys and values of all tokens so far.
    Attention,
    /// By one vector a layer, which forgets (the SSRU of Marian's small models).
    Recurrent,
}

/// What is added to embeddings: sines in the first half of a vector, cosines in the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) struct Positions {
    /// The tokens of a text that there are positions for.
    pub(in crate::build) length: usize,
    pub(in crate::build) waves: Waves,
    /// The id that has no position and after which positions are counted (M2M100); else they count from 0,
    /// whatever the token.
    pub(in crate::build) padding: Option<i64>,
}

/// How the wave lengths of the sines are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::build) enum Waves {
    /// The longest is 10000 radians: the exponent is divided by one less than the number of waves.
    ToTheEnd,
    /// The longest is one step short of that (the paper's own form).
    ShortOfTheEnd,
}

impl Positions {
    /// The first row of the table that a token gets.
    pub(super) fn first(&self) -> i64 {
        self.padding.map_or(0, |padding| padding + 1)
    }

    /// The rows of the table.
    pub(super) fn rows(&self) -> usize {
        self.length + usize::try_from(self.first()).unwrap_or(0)
    }

    /// The table, of `width` values a row.
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

    /// In the precision that `transformers` has it in: at a thousand tokens the difference would show.
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

/// The first of `names` that is among the weights: files of tied matrices keep one of them.
pub(in crate::build) fn first_of(weights: &Weights, names: &[&str]) -> Result<String> {
    let found = names.iter().find(|name| weights.has(name));
    found.map(|name| (*name).to_owned()).ok_or_else(|| {
        Error::model(format!("expected one of the weights {}, but found none", crate::error::quoted(names)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_families() {
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
