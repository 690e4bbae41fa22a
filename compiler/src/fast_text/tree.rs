//! The binary tree over the labels in hierarchical softmax: a Huffman tree of their counts.

use kivu::{Error, Result};

/// fastText's count for a node that does not exist yet, above all others.
const UNKNOWN: i64 = 1_000_000_000_000_000;

/// Paths from the root to the labels.
pub struct Tree {
    pub labels: usize,
    /// Steps in the longest path, to which the others are filled up.
    pub depth: usize,
    /// Per label: an inner node to go left, a node plus their number to go right, and twice their number for no step.
    pub paths: Vec<i64>,
}

impl Tree {
    /// Builds the tree for labels with these counts, which are in descending order.
    pub fn new(counts: &[i64]) -> Result<Self> {
        let labels = counts.len();
        let total = counts.iter().try_fold(0_i64, |sum, count| {
            sum.checked_add(*count).filter(|sum| *sum < UNKNOWN)
        });
        if total.is_none()
            || counts.iter().any(|count| *count < 1)
            || !counts.is_sorted_by(|left, right| left >= right)
        {
            return Err(Error::model(
                "expected label counts of at least 1, in descending order and 10^15 together at \
                 most, but found others",
            )
            .with_hint("the file is damaged"));
        }
        let mut nodes = counts.to_vec();
        // Each node's parent, and whether it is the right child.
        let mut parents = vec![(0, false); 2 * labels - 1];
        let (mut leaf, mut inner) = (labels, labels);
        for parent in labels..2 * labels - 1 {
            let mut sum = 0;
            for is_right in [false, true] {
                let count = nodes.get(inner).copied().unwrap_or(UNKNOWN);
                let child = if leaf > 0 && nodes[leaf - 1] < count {
                    leaf -= 1;
                    leaf
                } else {
                    inner += 1;
                    inner - 1
                };
                sum += nodes[child];
                parents[child] = (parent, is_right);
            }
            nodes.push(sum);
        }
        let root = 2 * labels - 2;
        let path = |label: usize| {
            let mut path = Vec::new();
            let mut node = label;
            while node != root {
                let (parent, is_right) = parents[node];
                path.push((parent - labels + if is_right { labels } else { 0 }) as i64);
                node = parent;
            }
            path.reverse();
            path
        };
        let paths: Vec<Vec<i64>> = (0..labels).map(path).collect();
        let depth = paths.iter().map(Vec::len).max().unwrap_or(0);
        let none = 2 * labels as i64;
        let filled = paths.into_iter().flat_map(|path| {
            let missing = depth - path.len();
            path.into_iter().chain(std::iter::repeat_n(none, missing))
        });
        Ok(Self {
            labels,
            depth,
            paths: filled.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_counts() {
        // The two rarest are joined first: (b, c), then with the more frequent a.
        let tree = Tree::new(&[8, 3, 2]).unwrap();
        let (left, right) = (|node: i64| node, |node: i64| node + 3);
        assert_eq!((tree.labels, tree.depth), (3, 2));
        assert_eq!(
            tree.paths,
            [right(1), 6, left(1), right(0), left(1), left(0)]
        );
    }

    #[test]
    fn impossible_counts_are_refused() {
        for counts in [
            &[0, 0][..],
            &[1, 2],
            &[5, -1],
            &[i64::MAX, 1],
            &[UNKNOWN, 1],
        ] {
            let refusal = Tree::new(counts).err().unwrap().to_string();
            assert!(
                refusal.starts_with("expected label counts of at least 1"),
                "{refusal}"
            );
        }
    }
}
