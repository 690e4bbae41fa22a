//! Embedding by tensors: dense vectors, sparse vectors and multi-vectors, as far as the model has them.

use super::{
    message::{Output, check_padded},
    outputs::padded,
};
use crate::bodies::request::Context;
use kivu::{
    Result,
    pipeline::{
        Input,
        embedding::{EmbeddingPipeline, EmbeddingSettings, Embeddings, VectorKind},
    },
    task::{
        Scope,
        embedding::{Embedder, EmbeddingParameters},
    },
    tensor::Elements,
};

/// Token ids with weights, and the weights: rows padded to the longest with -1 and 0.
const INDICES: &str = "sparse_indices";
const VALUES: &str = "sparse_values";
/// Token vectors, padded with zeros to the longest text.
const MULTI_VECTORS: &str = "multi_vectors";
/// Vector count per text.
const LENGTHS: &str = "multi_vector_lengths";
/// Number of values per vector, in shapes.
const DIMENSIONS: i64 = 0;

/// An output's vector kind, name, type and shape. The manifest may rename dense vectors.
type VectorOutput = (VectorKind, &'static str, &'static str, &'static [i64]);

const OUTPUTS: [VectorOutput; 5] = [
    (VectorKind::Dense, "embedding", "FP32", &[-1, DIMENSIONS]),
    (VectorKind::Sparse, INDICES, "INT64", &[-1, -1]),
    (VectorKind::Sparse, VALUES, "FP32", &[-1, -1]),
    (
        VectorKind::MultiVector,
        MULTI_VECTORS,
        "FP32",
        &[-1, -1, DIMENSIONS],
    ),
    (VectorKind::MultiVector, LENGTHS, "INT64", &[-1]),
];

/// Names, types and shapes of a model's outputs. Dense vectors have the name `dense`, if there is one.
pub fn outputs<'a>(
    settings: &EmbeddingSettings,
    dense: Option<&'a str>,
) -> impl Iterator<Item = (&'a str, &'static str, Vec<i64>)> {
    settings
        .outputs()
        .into_iter()
        .flat_map(move |(kind, dimensions)| {
            let own = OUTPUTS.into_iter().filter(move |(of, ..)| *of == kind);
            own.map(move |(_, name, datatype, shape)| {
                let name = dense.filter(|_| kind == VectorKind::Dense).unwrap_or(name);
                let side = |side: &i64| {
                    if *side == DIMENSIONS {
                        dimensions as i64
                    } else {
                        *side
                    }
                };
                (name, datatype, shape.iter().map(side).collect())
            })
        })
}

fn kind(name: &str) -> VectorKind {
    OUTPUTS
        .into_iter()
        .find(|(_, known, ..)| *known == name)
        .map_or(VectorKind::Dense, |(kind, ..)| kind)
}

/// Outputs for a request that names none: the first vector kind.
pub fn by_default<'a>(pipeline: &EmbeddingPipeline, outputs: &[&'a str]) -> Vec<&'a str> {
    let first = pipeline.settings().outputs().first().map(|(kind, _)| *kind);
    outputs
        .iter()
        .copied()
        .filter(|name| Some(kind(name)) == first)
        .collect()
}

/// A model with a request's parameters, for outputs with these names.
pub fn prepare(
    pipeline: &EmbeddingPipeline,
    names: &[&str],
    parameters: EmbeddingParameters,
    scope: &Scope,
) -> Result<Embedder> {
    let kinds = Some(names.iter().map(|name| kind(name)).collect());
    EmbeddingParameters {
        outputs: kinds,
        output_dtype: None,
        ..parameters
    }
    .prepare(pipeline, scope)
}

/// Runs a model once, and returns its outputs with these names.
pub async fn run<'a>(
    context: &Context,
    embedder: &Embedder,
    names: &[&'a str],
    inputs: Vec<Input>,
) -> Result<Vec<(&'a str, Output)>> {
    let Embeddings { vectors, usage } = embedder.run(inputs, context.deadline).await?;
    let count = vectors.len();
    let sparse = || {
        vectors
            .iter()
            .filter_map(|text| text.sparse.as_ref())
            .map(|sparse| &sparse.0)
    };
    let multi = || vectors.iter().filter_map(|text| text.multi_vector.as_ref());
    let width = embedder
        .pipeline
        .settings()
        .multi_vector
        .as_ref()
        .map_or(0, |multi| multi.dimensions);
    let numbers = |name: &&str| match *name {
        INDICES | VALUES => count * sparse().map(Vec::len).max().unwrap_or(0),
        MULTI_VECTORS => count * multi().map(Vec::len).max().unwrap_or(0) * width,
        _ => 0,
    };
    check_padded(names.iter().map(numbers).sum(), context.app.limits.values)?;
    let output = |name: &&'a str| {
        let (shape, elements) = match *name {
            INDICES => {
                let ids =
                    |row: &Vec<(u32, f32)>| row.iter().map(|(id, _)| i64::from(*id)).collect();
                let (longest, ids) = padded(&sparse().map(ids).collect::<Vec<_>>(), -1);
                (vec![count, longest], Elements::Int64(ids))
            }
            VALUES => {
                let weights =
                    |row: &Vec<(u32, f32)>| row.iter().map(|(_, weight)| *weight).collect();
                let (longest, weights) = padded(&sparse().map(weights).collect::<Vec<_>>(), 0.0);
                (vec![count, longest], Elements::Fp32(weights))
            }
            MULTI_VECTORS => {
                let (longest, values) =
                    padded(&multi().map(|text| text.concat()).collect::<Vec<_>>(), 0.0);
                (
                    vec![count, longest / width.max(1), width],
                    Elements::Fp32(values),
                )
            }
            LENGTHS => (
                vec![count],
                Elements::Int64(multi().map(|vectors| vectors.len() as i64).collect()),
            ),
            _ => {
                let dense: Vec<_> = vectors
                    .iter()
                    .filter_map(|text| text.dense.as_deref())
                    .collect();
                (
                    vec![count, dense.first().map_or(0, |dense| dense.len())],
                    Elements::Fp32(dense.concat()),
                )
            }
        };
        (
            *name,
            Output {
                shape,
                elements,
                usage: usage.clone(),
            },
        )
    };
    Ok(names.iter().map(output).collect())
}
