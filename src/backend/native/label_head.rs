//! fastText's output layer: label scores from a text's mean vector.

use std::collections::BTreeMap;

use bytes::Bytes;
use kivu_engine::array::Array;

use super::graph::data;
use crate::{
    error::{Error, Result},
    onnx_proto::{FUNCTIONS, GraphProto, NodeProto, TensorProto},
};

/// Function for products of a mean vector and each row of a matrix: see `compiler/src/functions.rs`.
pub const ROW_PRODUCTS: &str = "RowProducts";
/// Function for label scores from the products for a tree's inner nodes.
pub const HIERARCHICAL_SOFTMAX: &str = "HierarchicalSoftmax";
/// Values in the tables for [`HIERARCHICAL_SOFTMAX`]: one below the sigmoid table, 513 in it, one above it.
pub const SIGMOID_STEPS: usize = 515;
/// The sigmoid table's last argument; the first is its negative.
const MAX_SIGMOID: f32 = 8.0;
/// Table steps per unit.
const STEPS_PER_UNIT: f32 = 32.0;

/// Label scores from mean vectors.
#[derive(Debug)]
pub(super) struct LabelHead {
    /// A row per product.
    matrix: Array<f32>,
    tree: Option<Tree>,
    /// Scores per text.
    pub(super) labels: usize,
}

/// Paths from the root of a binary tree to the labels.
#[derive(Debug)]
struct Tree {
    /// Log-probabilities to go left, and right.
    steps: [Array<f32>; 2],
    /// Per label, `depth` steps: a node to go left, a node plus their number to go right, or twice their number for none.
    paths: Vec<usize>,
    depth: usize,
}

impl LabelHead {
    /// Whether a node belongs to a head.
    pub(super) fn has(node: &NodeProto) -> bool {
        node.domain == FUNCTIONS && [ROW_PRODUCTS, HIERARCHICAL_SOFTMAX].contains(&node.op_type.as_str())
    }

    /// Reads the head after the node `mean`, whose vectors have `width` values; `None` if there is none.
    pub(super) fn open(
        graph: &GraphProto,
        mean: &NodeProto,
        width: usize,
        files: &BTreeMap<String, Bytes>,
    ) -> Result<Option<Self>> {
        let after = |before: &NodeProto, kind: &str| {
            let follows =
                |node: &&NodeProto| node.op_type == kind && node.input.first() == before.output.first();
            graph.node.iter().filter(|node| Self::has(node)).find(follows)
        };
        let Some(products) = after(mean, ROW_PRODUCTS) else {
            return match graph.node.iter().any(Self::has) {
                true => Err(damaged("a head that does not read the mean")),
                false => Ok(None),
            };
        };
        let constant = |node: &NodeProto, input: usize| -> Result<(&TensorProto, Bytes)> {
            let name = node.input.get(input).map(String::as_str).unwrap_or_default();
            let found = graph.initializer.iter().find(|tensor| tensor.name == name);
            let tensor = found.ok_or_else(|| damaged(&format!("`{name}`, which is not a constant")))?;
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
            return Ok(Some(Self { matrix, tree: None, labels: rows }));
        };
        let floats = |input| Ok::<Array<f32>, Error>(Array::new(&constant(softmax, input)?.1));
        let integers = |input| Ok::<Array<i64>, Error>(Array::new(&constant(softmax, input)?.1));
        let steps = [floats(1)?, floats(2)?];
        if steps.iter().any(|table| table.len() != SIGMOID_STEPS) {
            return Err(damaged(&format!("tables whose length is not {SIGMOID_STEPS}")));
        }
        let (paths, shape) = (integers(3)?, integers(4)?);
        let side = |side: i64| usize::try_from(side).ok().filter(|side| *side > 0);
        let shape = if let [_, labels, depth] = shape[..] { side(labels).zip(side(depth)) } else { None };
        let shape = shape.filter(|(labels, depth)| labels.checked_mul(*depth) == Some(paths.len()));
        let (labels, depth) = shape.ok_or_else(|| damaged("paths of another shape"))?;
        let step = |step: &i64| usize::try_from(*step).ok().filter(|step| *step <= 2 * rows);
        let paths: Option<Vec<usize>> = paths.iter().map(step).collect();
        let paths = paths.ok_or_else(|| damaged("paths to unknown nodes"))?;
        Ok(Some(Self { matrix, tree: Some(Tree { steps, paths, depth }), labels }))
    }

    /// Writes a mean vector's scores. Sums are added in fastText's order, without fused multiplication: a value that is
    /// rounded to another entry of the sigmoid table changes the third decimal.
    pub(super) fn score(&self, mean: &[f32], scores: &mut [f32]) {
        let rows = self.matrix.chunks_exact(mean.len());
        let products =
            rows.map(|row| row.iter().zip(mean).fold(0.0_f32, |sum, (left, right)| sum + left * right));
        match &self.tree {
            None => scores.iter_mut().zip(products).for_each(|(score, product)| *score = product),
            Some(tree) => tree.score(products.map(sigmoid_step).collect(), scores),
        }
    }
}

impl Tree {
    /// Writes label scores, from each node's place in the tables.
    fn score(&self, places: Vec<usize>, scores: &mut [f32]) {
        let [left, right] = &self.steps;
        let step = |step: &usize| match step.checked_sub(places.len()) {
            None => left[places[*step]],
            Some(node) => places.get(node).map_or(0.0, |place| right[*place]),
        };
        for (score, path) in scores.iter_mut().zip(self.paths.chunks_exact(self.depth)) {
            *score = path.iter().map(step).sum::<f32>().exp().min(1.0);
        }
    }
}

/// A product's place in the tables.
fn sigmoid_step(product: f32) -> usize {
    if product < -MAX_SIGMOID {
        0
    } else if product > MAX_SIGMOID {
        SIGMOID_STEPS - 1
    } else {
        1 + ((product + MAX_SIGMOID) * STEPS_PER_UNIT) as usize
    }
}

fn damaged(what: &str) -> Error {
    Error::model(format!(
        "expected a label head after a vector table, but found {what}; build the bundle again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_found_in_the_sigmoid_table() {
        let steps = [f32::NEG_INFINITY, -8.001, -8.0, -7.98, 0.0, 7.999, 8.0, 8.001, f32::INFINITY];
        assert_eq!(steps.map(sigmoid_step), [0, 0, 1, 1, 257, 512, 513, 514, 514]);
    }
}
