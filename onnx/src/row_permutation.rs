//! Reorders tensor rows in place, for KV cache tensors when beams move.

/// Copies that reorder rows without overwriting a row before it is read. Each row is copied once: with five beams on a
/// large model they are megabytes at every step.
#[derive(Debug)]
pub struct RowPermutation(Vec<Copy>);

/// A copy between two rows. `None` is a buffer outside the tensor, which breaks cycles.
#[derive(Debug)]
struct Copy {
    from: Option<usize>,
    to: Option<usize>,
}

impl RowPermutation {
    /// Copies after which row `i` has the values from row `rows[i]`.
    pub fn new(rows: &[usize]) -> Self {
        let moved = rows.iter().enumerate().filter(|(to, from)| to != *from);
        let mut left: Vec<(usize, Option<usize>)> =
            moved.map(|(to, from)| (to, Some(*from))).collect();
        let mut copies = Vec::with_capacity(left.len() + 1);
        while let Some((first, _)) = left.first().copied() {
            let is_needed = |row: usize| left.iter().any(|(_, from)| *from == Some(row));
            match left.iter().position(|(to, _)| !is_needed(*to)) {
                Some(place) => {
                    let (to, from) = left.swap_remove(place);
                    copies.push(Copy { from, to: Some(to) });
                }
                // Only cycles are left. Buffering a row breaks one.
                None => {
                    copies.push(Copy {
                        from: Some(first),
                        to: None,
                    });
                    left.iter_mut()
                        .filter(|(_, from)| *from == Some(first))
                        .for_each(|(_, from)| *from = None);
                }
            }
        }
        Self(copies)
    }

    /// Reorders rows with `width` values each. `values` must contain all rows.
    pub fn apply(&self, values: &mut [f32], width: usize) {
        let range = |row: usize| row * width..(row + 1) * width;
        let mut buffer = Vec::new();
        for Copy { from, to } in &self.0 {
            match (*from, *to) {
                (Some(from), Some(to)) => values.copy_within(range(from), to * width),
                (Some(from), None) => buffer = values[range(from)].to_vec(),
                (None, Some(to)) => values[range(to)].copy_from_slice(&buffer),
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
        fn every_row_gets_the_values_of_its_source(rows in proptest::collection::vec(0..7_usize, 7)) {
            let mut values: Vec<f32> = (0..14).map(|value| value as f32).collect();
            RowPermutation::new(&rows).apply(&mut values, 2);
            let expected: Vec<f32> = rows.iter().flat_map(|row| [2.0 * *row as f32, 2.0 * *row as f32 + 1.0]).collect();
            prop_assert_eq!(values, expected, "{:?}", rows);
        }
    }
}
