//! Rows of a tensor that change their places within it.

/// The order in which rows are copied so that none is lost: for five beams of a large model they are megabytes at
/// every step, of which each is copied once.
#[derive(Debug)]
pub(super) struct RowPermutation(Vec<Move>);

/// One copy. A row that all others wait for goes aside first, and comes from there.
#[derive(Debug)]
struct Move {
    from: Option<usize>,
    to: Option<usize>,
}

impl RowPermutation {
    /// The moves after which row `i` is what row `rows[i]` was. Rows that stay are not touched.
    pub(super) fn new(rows: &[usize]) -> Self {
        let moved = rows.iter().enumerate().filter(|(to, from)| to != *from);
        let mut left: Vec<(usize, Option<usize>)> = moved.map(|(to, from)| (to, Some(*from))).collect();
        let mut moves = Vec::with_capacity(left.len() + 1);
        while let Some((first, _)) = left.first().copied() {
            let is_wanted = |row: usize| left.iter().any(|(_, from)| *from == Some(row));
            match left.iter().position(|(to, _)| !is_wanted(*to)) {
                Some(place) => {
                    let (to, from) = left.swap_remove(place);
                    moves.push(Move { from, to: Some(to) });
                }
                // Only rings are left, each of whose rows is wanted once.
                None => {
                    moves.push(Move { from: Some(first), to: None });
                    left.iter_mut()
                        .filter(|(_, from)| *from == Some(first))
                        .for_each(|(_, from)| *from = None);
                }
            }
        }
        Self(moves)
    }

    /// RowPermutation rows of `size` values, all of which are there.
    pub(super) fn apply(&self, values: &mut [f32], size: usize) {
        let of = |row: usize| row * size..(row + 1) * size;
        let mut aside = Vec::new();
        for Move { from, to } in &self.0 {
            match (*from, *to) {
                (Some(from), Some(to)) => values.copy_within(of(from), to * size),
                (Some(from), None) => aside = values[of(from)].to_vec(),
                (None, Some(to)) => values[of(to)].copy_from_slice(&aside),
                (None, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_row_comes_from_where_it_should(rows in proptest::collection::vec(0..7_usize, 7)) {
            let mut values: Vec<f32> = (0..14).map(|value| value as f32).collect();
            RowPermutation::new(&rows).apply(&mut values, 2);
            let expected: Vec<f32> = rows.iter().flat_map(|row| [2.0 * *row as f32, 2.0 * *row as f32 + 1.0]).collect();
            prop_assert_eq!(values, expected, "{:?}", rows);
        }
    }
}
