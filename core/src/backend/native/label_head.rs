//! fastText's output layer: label scores from a text's mean vector.

use std::collections::BTreeMap;

use bytes::Bytes;
use kivu_engine::array::Array;

use super::graph::data;
use kivu_base::{
    Error, Result,
    onnx_proto::{FUNCTIONS, GraphProto, NodeProto, TensorProto},
};

/// Function for products of a mean vector and each row of a matrix: see `compiler/src/onnx/functions.rs`.
pub const ROW_PRODUCTS: &str = "RowProducts";
/// Function for label scores from the products for a tree's inner nodes.
pub const HIERARCHICAL_SOFTMAX: &str = "HierarchicalSoftmax";
/// Added to probabilities before their logarithm.
const EPSILON: f32 = 1e-5;

/// Label scores from mean vectors.
#[derive(Debug)]
pub struct LabelHead {
    /// A row per product.
    matrix: Array<f32>,
    tree: Option<Tree>,
    /// Scores per text.
    pub labels: usize,
}

/// Paths from the root of a binary tree to the labels.
#[derive(Debug)]
struct Tree {
    /// Per label, `depth` steps: a node to go left, a node plus their number to go right, or twice their number for none.
    paths: Vec<usize>,
    depth: usize,
}

impl LabelHead {
    /// Whether a node belongs to a head.
    pub fn has(node: &NodeProto) -> bool {
        node.domain == FUNCTIONS
            && [ROW_PRODUCTS, HIERARCHICAL_SOFTMAX].contains(&node.op_type.as_str())
    }

    /// Reads the head after the node `mean`, whose vectors have `width` values; `None` if there is none.
    pub fn open(
        graph: &GraphProto,
        mean: &NodeProto,
        width: usize,
        files: &BTreeMap<String, Bytes>,
    ) -> Result<Option<Self>> {
        let after = |before: &NodeProto, kind: &str| {
            let follows = |node: &&NodeProto| {
                node.op_type == kind && node.input.first() == before.output.first()
            };
            graph
                .node
                .iter()
                .filter(|node| Self::has(node))
                .find(follows)
        };
        let Some(products) = after(mean, ROW_PRODUCTS) else {
            return match graph.node.iter().any(Self::has) {
                true => Err(damaged("a head that does not read the mean")),
                false => Ok(None),
            };
        };
        let constant = |node: &NodeProto, input: usize| -> Result<(&TensorProto, Bytes)> {
            let name = node.input_name(input);
            let tensor = graph
                .constant(name)
                .ok_or_else(|| damaged(&format!("`{name}`, which is not a constant")))?;
            Ok((tensor, data(tensor, files)?))
        };
        let (tensor, bytes) = constant(products, 1)?;
        let matrix: Array<f32> = Array::new(&bytes);
        let rows = match tensor.dims[..] {
            [rows, columns] if usize::try_from(columns) == Ok(width) => usize::try_from(rows).ok(),
            _ => None,
        };
        let rows = rows.filter(|rows| *rows > 0 && rows.checked_mul(width) == Some(matrix.len()));
        let rows = rows.ok_or_else(|| damaged(&format!("a matrix of shape {:?}", tensor.dims)))?;
        let Some(softmax) = after(products, HIERARCHICAL_SOFTMAX) else {
            return Ok(Some(Self {
                matrix,
                tree: None,
                labels: rows,
            }));
        };
        let integers = |input| Ok::<Array<i64>, Error>(Array::new(&constant(softmax, input)?.1));
        let (paths, shape) = (integers(1)?, integers(2)?);
        let side = |side: i64| usize::try_from(side).ok().filter(|side| *side > 0);
        let shape = if let [_, labels, depth] = shape[..] {
            side(labels).zip(side(depth))
        } else {
            None
        };
        let shape = shape.filter(|(labels, depth)| labels.checked_mul(*depth) == Some(paths.len()));
        let (labels, depth) = shape.ok_or_else(|| damaged("paths of another shape"))?;
        let step = |step: &i64| usize::try_from(*step).ok().filter(|step| *step <= 2 * rows);
        let paths: Option<Vec<usize>> = paths.iter().map(step).collect();
        let paths = paths.ok_or_else(|| damaged("paths to unknown nodes"))?;
        Ok(Some(Self {
            matrix,
            tree: Some(Tree { paths, depth }),
            labels,
        }))
    }

    /// Writes a mean vector's scores.
    pub fn score(&self, mean: &[f32], scores: &mut [f32]) {
        let rows = self.matrix.chunks_exact(mean.len());
        let products = rows.map(|row| {
            row.iter()
                .zip(mean)
                .map(|(left, right)| left * right)
                .sum::<f32>()
        });
        match &self.tree {
            None => scores
                .iter_mut()
                .zip(products)
                .for_each(|(score, product)| *score = product),
            Some(tree) => tree.score(products, scores),
        }
    }
}

impl Tree {
    /// Writes label probabilities, from each inner node's product.
    fn score(&self, products: impl Iterator<Item = f32>, scores: &mut [f32]) {
        // Log-probabilities to go left, and right; the last is for no step.
        let (mut steps, right): (Vec<f32>, Vec<f32>) = products.map(log_probabilities).unzip();
        steps.extend(right);
        steps.push(0.0);
        for (score, path) in scores.iter_mut().zip(self.paths.chunks_exact(self.depth)) {
            *score = path
                .iter()
                .map(|step| steps[*step])
                .sum::<f32>()
                .exp()
                .min(1.0);
        }
    }
}

fn log_probabilities(product: f32) -> (f32, f32) {
    let right = 1.0 / (1.0 + (-product).exp());
    ((1.0 - right + EPSILON).ln(), (right + EPSILON).ln())
}

fn damaged(what: &str) -> Error {
    Error::model(format!(
        "expected a label head after a vector table, but found {what}"
    ))
    .with_hint("build the bundle again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_products_along_paths() {
        // Two inner nodes and no third: left at the root, then both ways; right at the root.
        let tree = Tree {
            paths: vec![1, 0, 1, 3, 4, 6],
            depth: 2,
        };
        let mut scores = [0.0; 3];
        tree.score([0.0, f32::ln(3.0), 9.0].into_iter(), &mut scores);
        let expected = [0.25 * 0.5, 0.25 * 0.5, 0.75];
        let mut pairs = scores.iter().zip(expected);
        assert!(
            pairs.all(|(found, expected)| (found - expected).abs() < 2e-5),
            "{scores:?}"
        );
        tree.score([0.0, f32::INFINITY, 0.0].into_iter(), &mut scores);
        assert_eq!(scores[2], 1.0, "not above 1");
    }
}
