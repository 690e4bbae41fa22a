//! DeBERTa's token distances: settings, embedding table rows, and the keys and queries computed from them.

use crate::{
    files::config::{ConfigFile, OneOrMany},
    onnx::layers::Activation,
};
use kivu::{Error, Result};

/// How attention uses the distance from a token to the one that attends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distances {
    /// Whether distances have keys, multiplied by token queries (content to position).
    pub has_keys: bool,
    /// Whether distances have queries, multiplied by token keys (position to content).
    pub has_queries: bool,
    /// Rows per direction if far distances share rows; `None` if each distance has a row.
    pub buckets: Option<i64>,
    /// Distances from here on are treated as equal.
    pub max: i64,
    /// Whether distance embeddings are normalized.
    pub is_normalized: bool,
    /// Whether distance keys and queries are computed by the token projections.
    pub shares_projections: bool,
}

/// Versions of DeBERTa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deberta {
    /// Without distance buckets, a convolution, and options for distance tables.
    First,
    Later,
}

/// A convolution over neighbouring tokens, parallel to the first layer.
#[derive(Debug)]
pub struct Convolution {
    pub width: usize,
    pub groups: usize,
    pub activation: Activation,
}

impl Convolution {
    pub fn read(config: &ConfigFile) -> Result<Option<Self>> {
        let width: usize = config.get("conv_kernel_size")?.unwrap_or(0);
        let groups = config.get("conv_groups")?.unwrap_or(1);
        if width == 0 {
            return Ok(None);
        }
        if width.is_multiple_of(2) || groups == 0 {
            return Err(Error::model(format!(
                "expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found {width} and \
                 {groups}"
            )));
        }
        let activation = config.get::<String>("conv_act")?;
        let activation = Activation::named(activation.as_deref().unwrap_or("tanh"))?;
        Ok(Some(Self {
            width,
            groups,
            activation,
        }))
    }
}

/// How distance embeddings are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Keys,
    Queries,
}

impl Distances {
    /// Reads the settings, `None` if the model ignores distances, and the number of terms listed in `config`.
    /// `positions` is the maximum text length in tokens.
    pub fn read(
        config: &ConfigFile,
        positions: usize,
        version: Deberta,
    ) -> Result<(Option<Self>, usize)> {
        // A list, or a string like `c2p|p2c`.
        let includes = |field: &str, word: &str| {
            Ok::<_, Error>(match config.get::<OneOrMany<String>>(field)? {
                Some(OneOrMany::One(words)) => words
                    .split('|')
                    .any(|other| other.trim().eq_ignore_ascii_case(word)),
                Some(OneOrMany::Many(words)) => words.iter().any(|other| other == word),
                None => false,
            })
        };
        let terms = [
            includes("pos_att_type", "c2p")?,
            includes("pos_att_type", "p2c")?,
        ];
        // Numbers below 1 count as missing.
        let positive = |field: &str| match config.get::<i64>(field)? {
            Some(1..) => Ok::<_, Error>(config.get_size(field)?.map(|size| size as i64)),
            _ => Ok(None),
        };
        let is_used = config.is_set("relative_attention")?;
        let distances = Self {
            has_keys: is_used && terms[0],
            has_queries: is_used && terms[1],
            buckets: match version {
                Deberta::First => None,
                Deberta::Later => positive("position_buckets")?,
            },
            max: positive("max_relative_positions")?.unwrap_or(positions as i64),
            is_normalized: version == Deberta::Later && includes("norm_rel_ebd", "layer_norm")?,
            shares_projections: version == Deberta::Later && config.is_set("share_att_key")?,
        };
        let count = usize::from(terms[0]) + usize::from(terms[1]);
        if !distances.has_keys && !distances.has_queries {
            return Ok((None, count));
        }
        let Self { buckets, max, .. } = distances;
        let near = buckets.map_or(1, |buckets| buckets / 2);
        if near < 1 || max <= near + i64::from(buckets.is_some()) {
            return Err(Error::model(format!(
                "expected distances that go beyond half of `position_buckets`, but found {max} distances and {} \
                 buckets",
                buckets.unwrap_or(0)
            )));
        }
        Ok((Some(distances), count))
    }

    /// The rows for each direction.
    pub fn span(&self) -> i64 {
        self.buckets.unwrap_or(self.max)
    }

    /// Distance bucket: near distances have one each, farther ones share logarithmic buckets.
    fn bucket(&self, distance: i64) -> i64 {
        let Some(buckets) = self.buckets else {
            return distance;
        };
        let middle = buckets / 2;
        if distance.abs() <= middle {
            return distance;
        }
        // In PyTorch's precision, which decides some distances' buckets.
        let far = (self.max - 1) as f64 / middle as f64;
        let share = (distance.abs() as f32 / middle as f32).ln() / (far as f32).ln();
        distance.signum() * ((share * (middle - 1) as f32).ceil() as i64 + middle)
    }

    /// A distance's row, from far ahead of the other token to far behind it.
    pub fn row(&self, distance: i64) -> i64 {
        self.bucket(distance).clamp(-self.span(), self.span()) + self.span()
    }

    pub fn projection(&self, side: Side) -> String {
        let name = if side == Side::Keys {
            "key_proj"
        } else {
            "query_proj"
        };
        if self.shares_projections {
            name.to_owned()
        } else {
            format!("pos_{name}")
        }
    }
}

/// Normalizes each row to mean 0 and variance 1, then multiplies it by `gain` and adds `bias`.
pub fn normalize(rows: &mut [f32], gain: &[f32], bias: &[f32], epsilon: f32) {
    let width = gain.len().max(1);
    for row in rows.chunks_exact_mut(width) {
        let mean = row.iter().map(|value| f64::from(*value)).sum::<f64>() / width as f64;
        let squares = row.iter().map(|value| (f64::from(*value) - mean).powi(2));
        let variance = squares.sum::<f64>() / width as f64;
        let factor = (variance + f64::from(epsilon)).sqrt().recip();
        for ((value, gain), bias) in row.iter_mut().zip(gain).zip(bias) {
            *value = ((f64::from(*value) - mean) * factor) as f32 * gain + bias;
        }
    }
}

/// Applies a linear layer to each row; each weight row produces one value.
pub fn project(rows: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let width = (weight.len() / bias.len().max(1)).max(1);
    let mut values = Vec::with_capacity(rows.len() / width * bias.len());
    for row in rows.chunks_exact(width) {
        values.extend(
            weight
                .chunks_exact(width)
                .zip(bias)
                .map(|(weight, bias)| dot(row, weight) + bias),
        );
    }
    values
}

/// Dot product in eight partial sums: several times as fast as one, and more exact.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (left, right) in left.iter().zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    let rest = left_rest
        .iter()
        .zip(right_rest)
        .map(|(left, right)| left * right);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

/// Selects matrix rows with `heads` times `width` values each, one head after the other.
pub fn head_by_head(matrix: &[f32], rows: &[usize], [heads, width]: [usize; 2]) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows.len() * heads * width);
    for head in 0..heads {
        for row in rows {
            let start = (row * heads + head) * width;
            values.extend_from_slice(&matrix[start..start + width]);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(buckets: Option<i64>, max: i64) -> Distances {
        Distances {
            has_keys: true,
            has_queries: true,
            buckets,
            max,
            is_normalized: true,
            shares_projections: true,
        }
    }

    #[test]
    fn distances_fall_into_the_buckets_of_transformers() {
        let base = distances(Some(256), 512);
        let cases = [
            (0, 0),
            (1, 1),
            (-1, -1),
            (128, 128),
            (129, 129),
            (200, 169),
            (-300, -207),
        ];
        for (distance, bucket) in
            cases
                .into_iter()
                .chain([(400, 233), (511, 255), (-511, -255), (512, 256)])
        {
            assert_eq!(base.bucket(distance), bucket, "{distance}");
        }
        // In double precision, these are in the next bucket.
        for (buckets, max, distance, bucket) in [
            (38, 514, 57, 25),
            (38, 514, -171, -31),
            (44, 177, 44, 29),
            (128, 513, 128, 85),
            (128, 513, -256, -106),
        ] {
            let found = distances(Some(buckets), max).bucket(distance);
            assert_eq!(
                found, bucket,
                "{buckets} buckets, {max} distances: {distance}"
            );
        }
        let tiny = distances(Some(16), 64);
        for (distance, bucket) in [
            (8, 8),
            (9, 9),
            (10, 9),
            (11, 10),
            (20, 12),
            (-20, -12),
            (40, 14),
            (63, 15),
        ] {
            assert_eq!(tiny.bucket(distance), bucket, "{distance}");
        }
        assert_eq!(distances(None, 64).bucket(-50), -50);
    }

    #[test]
    fn distances_beyond_the_last_row_share_it() {
        let base = distances(Some(256), 512);
        let rows = [-700, -512, -511, 0, 511, 512, 700].map(|distance| base.row(distance));
        assert_eq!(rows, [0, 0, 1, 256, 511, 512, 512]);
    }

    #[test]
    fn rows_are_normalized_and_projected() {
        let mut rows = [1.0, 3.0, 7.0, 3.0];
        normalize(&mut rows, &[2.0, 1.0], &[0.0, 1.0], 0.0);
        assert_eq!(rows, [-2.0, 2.0, 2.0, 0.0]);
        let weight = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        let projected = project(&[1.0, 2.0, 3.0, 4.0], &weight, &[0.5, 0.0, -1.0]);
        assert_eq!(projected, [1.5, 2.0, 2.0, 3.5, 4.0, 6.0]);
        assert_eq!(dot(&[2.0; 19], &[3.0; 19]), 114.0);
    }

    #[test]
    fn rows_are_cut_into_heads() {
        let matrix = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let values = head_by_head(&matrix, &[1, 0, 0], [2, 2]);
        assert_eq!(
            values,
            [4.0, 5.0, 0.0, 1.0, 0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 2.0, 3.0]
        );
    }
}
