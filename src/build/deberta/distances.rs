//! The keys and queries of distances: which row a distance has, and the tables that the graph holds.

/// What attention makes of distances: how far behind another token the one is that attends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Distances {
    /// Whether distances have keys, for the queries of tokens (content to position).
    pub(super) has_keys: bool,
    /// Whether distances have queries, for the keys of tokens (position to content).
    pub(super) has_queries: bool,
    /// How many rows each direction has, where far distances share them; each has its own otherwise.
    pub(super) buckets: Option<i64>,
    /// From here on, distances are all the same.
    pub(super) farthest: i64,
    /// Whether the embeddings of distances are normalised.
    pub(super) is_normalised: bool,
    /// Whether their keys and queries are made by the projections of tokens.
    pub(super) shares_projections: bool,
}

/// What is made of the embedding of a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Keys,
    Queries,
}

/// Which way the rows of a table of distances go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// From far ahead of the other token to far behind it, as [`Distances::row`] counts.
    Rising,
    Falling,
}

impl Distances {
    /// How many rows each direction has.
    pub(super) fn span(&self) -> i64 {
        self.buckets.unwrap_or(self.farthest)
    }

    /// The bucket of a distance: near ones have one each, farther ones share them by their logarithm.
    fn bucket(&self, distance: i64) -> i64 {
        let Some(buckets) = self.buckets else { return distance };
        let middle = buckets / 2;
        if distance.abs() <= middle {
            return distance;
        }
        let times = |distance: i64| (distance as f64 / middle as f64).ln();
        let share = times(distance.abs()) / times(self.farthest - 1);
        distance.signum() * ((share * (middle - 1) as f64).ceil() as i64 + middle)
    }

    /// The row of a distance in a table of [`Order::Rising`].
    pub(super) fn row(&self, distance: i64) -> i64 {
        self.bucket(distance).clamp(-self.span(), self.span()) + self.span()
    }

    /// Which rows of the model's table make up one of the given order. The model's has none for the farthest
    /// bucket behind, for which it takes the one before.
    pub(super) fn order(&self, order: Order) -> Vec<usize> {
        let most = 2 * self.span() as usize;
        let rows = (0..=most).map(|row| row.min(most - 1));
        match order {
            Order::Rising => rows.collect(),
            Order::Falling => rows.rev().collect(),
        }
    }

    pub(super) fn projection(&self, side: Side) -> &'static str {
        match (side, self.shares_projections) {
            (Side::Keys, true) => "key_proj",
            (Side::Keys, false) => "pos_key_proj",
            (Side::Queries, true) => "query_proj",
            (Side::Queries, false) => "pos_query_proj",
        }
    }
}

/// Brings each row to mean 0 and variance 1, then multiplies it with `gain` and adds `bias`.
pub(super) fn normalise(rows: &mut [f32], gain: &[f32], bias: &[f32], epsilon: f32) {
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

/// What a linear layer makes of each row; a row of its weight makes one value.
pub(super) fn project(rows: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let width = (weight.len() / bias.len().max(1)).max(1);
    let mut values = Vec::with_capacity(rows.len() / width * bias.len());
    for row in rows.chunks_exact(width) {
        values.extend(weight.chunks_exact(width).zip(bias).map(|(weight, bias)| dot(row, weight) + bias));
    }
    values
}

/// Eight sums at once, which is several times as fast as one and more exact.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (left, right) in left.iter().zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(left, right)| left * right);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

/// The given rows of a matrix whose rows have the given number of heads, each of the given width; one head
/// after the other.
pub(super) fn head_by_head(matrix: &[f32], rows: &[usize], [heads, width]: [usize; 2]) -> Vec<f32> {
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
pub(super) mod tests {
    use super::*;

    pub(in crate::build::deberta) fn distances(buckets: Option<i64>, farthest: i64) -> Distances {
        Distances {
            has_keys: true,
            has_queries: true,
            buckets,
            farthest,
            is_normalised: true,
            shares_projections: true,
        }
    }

    #[test]
    fn distances_fall_into_the_buckets_of_transformers() {
        let base = distances(Some(256), 512);
        let cases = [(0, 0), (1, 1), (-1, -1), (128, 128), (129, 129), (200, 169), (-300, -207)];
        for (distance, bucket) in cases.into_iter().chain([(400, 233), (511, 255), (-511, -255), (512, 256)])
        {
            assert_eq!(base.bucket(distance), bucket, "{distance}");
        }
        let tiny = distances(Some(16), 64);
        for (distance, bucket) in
            [(8, 8), (9, 9), (10, 9), (11, 10), (20, 12), (-20, -12), (40, 14), (63, 15)]
        {
            assert_eq!(tiny.bucket(distance), bucket, "{distance}");
        }
        assert_eq!(distances(None, 64).bucket(-50), -50);
    }

    #[test]
    fn distances_beyond_the_last_row_share_it() {
        let base = distances(Some(256), 512);
        let rows = [-700, -512, -511, 0, 511, 512, 700].map(|distance| base.row(distance));
        assert_eq!(rows, [0, 0, 1, 256, 511, 512, 512]);
        assert_eq!(distances(None, 2).order(Order::Rising), [0, 1, 2, 3, 3]);
        assert_eq!(distances(None, 2).order(Order::Falling), [3, 3, 2, 1, 0]);
    }

    #[test]
    fn rows_are_normalised_and_projected() {
        let mut rows = [1.0, 3.0, 7.0, 3.0];
        normalise(&mut rows, &[2.0, 1.0], &[0.0, 1.0], 0.0);
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
        assert_eq!(values, [4.0, 5.0, 0.0, 1.0, 0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 2.0, 3.0]);
    }
}
