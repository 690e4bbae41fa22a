//! Embedding by tensors: dense vectors, sparse vectors and multi-vectors, as far as the model has them.

use super::message::{InferRequest, Output, check_padded};
use crate::{
    backend::Deadline,
    error::Result,
    pipeline::{
        Input,
        embedding::{EmbeddingPipeline, Embeddings, VectorKind},
    },
    task::{Scope, embedding::EmbeddingParameters},
    tensor::Elements,
};

/// Default name for dense vectors.
const DENSE: &str = "embedding";
/// Token ids with weights, and the weights: rows padded to the longest with -1 and 0.
const INDICES: &str = "sparse_indices";
const VALUES: &str = "sparse_values";
/// Token vectors, padded with zeros to the longest text.
const MULTI_VECTORS: &str = "multi_vectors";
/// Vector count per text.
const LENGTHS: &str = "multi_vector_lengths";

/// Names, types and shapes of a model's outputs. Dense vectors have the name `dense`, if there is one.
pub(super) fn outputs<'a>(
    pipeline: &EmbeddingPipeline,
    dense: Option<&'a str>,
) -> Vec<(&'a str, &'static str, Vec<i64>)> {
    let mut outputs = Vec::new();
    for (kind, dimensions) in pipeline.settings().outputs() {
        match kind {
            VectorKind::Dense => {
                outputs.push((dense.unwrap_or(DENSE), "FP32", vec![-1, dimensions as i64]));
            }
            VectorKind::Sparse => {
                outputs.extend([(INDICES, "INT64", vec![-1, -1]), (VALUES, "FP32", vec![-1, -1])]);
            }
            VectorKind::MultiVector => outputs.extend([
                (MULTI_VECTORS, "FP32", vec![-1, -1, dimensions as i64]),
                (LENGTHS, "INT64", vec![-1]),
            ]),
        }
    }
    outputs
}

fn kind(name: &str) -> VectorKind {
    match name {
        INDICES | VALUES => VectorKind::Sparse,
        MULTI_VECTORS | LENGTHS => VectorKind::MultiVector,
        _ => VectorKind::Dense,
    }
}

/// Outputs for a request that names none: the first vector kind.
pub(super) fn by_default<'a>(pipeline: &EmbeddingPipeline, outputs: &[&'a str]) -> Vec<&'a str> {
    let first = pipeline.settings().outputs().first().map(|(kind, _)| *kind);
    outputs.iter().copied().filter(|name| Some(kind(name)) == first).collect()
}

/// Runs a model once, and returns its outputs with these names.
pub(super) async fn run<'a>(
    pipeline: &EmbeddingPipeline,
    (inputs, request): (Vec<Input>, &InferRequest),
    names: &[&'a str],
    (scope, deadline): (Scope, Deadline),
) -> Result<Vec<(&'a str, Output)>> {
    let parameters = EmbeddingParameters {
        outputs: Some(names.iter().map(|name| kind(name)).collect()),
        output_dtype: None,
        ..request.task_parameters()?
    };
    let embedder = parameters.prepare(pipeline, &scope)?;
    let Embeddings { vectors, usage } = embedder.run(inputs, deadline).await?;
    let count = vectors.len();
    let dense = || vectors.iter().filter_map(|text| text.dense.as_deref());
    let sparse = || vectors.iter().map(|text| text.sparse.as_ref().map_or(&[][..], |sparse| &sparse.0));
    let multi = || vectors.iter().map(|text| text.multi_vector.as_deref().unwrap_or_default());
    let most = sparse().map(<[_]>::len).max().unwrap_or(0);
    let longest = multi().map(<[_]>::len).max().unwrap_or(0);
    let width = pipeline.settings().multi_vector.as_ref().map_or(0, |multi| multi.dimensions);
    let values = |name: &&str| match *name {
        INDICES | VALUES => count * most,
        MULTI_VECTORS => count * longest * width,
        _ => 0,
    };
    check_padded(names.iter().map(values).sum(), scope.max_values)?;
    let output = |name: &&'a str| {
        let (shape, elements) = match *name {
            INDICES => {
                let row = |row: &[(u32, f32)]| padded(row.iter().map(|(id, _)| i64::from(*id)), most, -1);
                (vec![count, most], Elements::Int64(sparse().flat_map(row).collect()))
            }
            VALUES => {
                let row = |row: &[(u32, f32)]| padded(row.iter().map(|(_, weight)| *weight), most, 0.0);
                (vec![count, most], Elements::Fp32(sparse().flat_map(row).collect()))
            }
            MULTI_VECTORS => {
                let row = |row: &[Vec<f32>]| padded(row.concat().into_iter(), longest * width, 0.0);
                (vec![count, longest, width], Elements::Fp32(multi().flat_map(row).collect()))
            }
            LENGTHS => (vec![count], Elements::Int64(multi().map(|vectors| vectors.len() as i64).collect())),
            _ => {
                let width = dense().next().map_or(0, <[_]>::len);
                (vec![count, width], Elements::Fp32(dense().flatten().copied().collect()))
            }
        };
        (*name, Output { shape, elements, location: usage.location })
    };
    Ok(names.iter().map(output).collect())
}

fn padded<T: Clone>(values: impl Iterator<Item = T>, length: usize, padding: T) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.resize(length, padding);
    values
}
