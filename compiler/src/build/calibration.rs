//! Value ranges for int8 vectors, from sample texts, and how well int8 and binary vectors keep the ranking.

use crate::{
    plan::progress::Progress,
    quality::{
        Texts,
        compare::nearest,
        served::{dense_vectors, prompt_name},
    },
};
use kivu::{
    Error, Result,
    pipeline::embedding::{
        EmbeddingPipeline,
        pooling::normalize,
        roles::TextRole,
        similarity::cosine,
        vectors::{Conversion, Ranges, VectorType},
    },
    repository::manifest::VectorQuality,
};

/// Measures a model's vector ranges for documents and queries, and stored vectors' quality.
///
/// `documents` are the dense vectors of `texts` as documents, if they are known.
pub fn calibrate(
    pipeline: &EmbeddingPipeline,
    documents: Option<Vec<Vec<f32>>>,
    texts: &Texts,
    progress: &dyn Progress,
) -> Result<(Ranges, VectorQuality)> {
    let prompt = |role| pipeline.prompt(prompt_name(pipeline.settings(), role)?);
    let has_queries = prompt(TextRole::Query)? != prompt(TextRole::Document)?;
    let vectors = |role| dense_vectors(pipeline, role, texts, progress);
    let runs = usize::from(documents.is_none()) + usize::from(has_queries);
    progress.stage("calibrate the vectors", runs * texts.count());
    let documents = documents.map_or_else(|| vectors(TextRole::Document), Ok)?;
    let queries = if has_queries {
        vectors(TextRole::Query)?
    } else {
        Vec::new()
    };
    let ranges = Ranges::of(&[documents.as_slice(), &queries].concat());
    let dimensions = documents.first().map_or(0, Vec::len);
    let quality = quality(&documents, |wanted| {
        Conversion::new(wanted, dimensions, Some(&ranges))
    })?;
    Ok((ranges, quality))
}

/// recall@10 against floating point: int8 vectors by cosine, binary vectors by Hamming distance.
pub fn quality(
    vectors: &[Vec<f32>],
    conversion: impl Fn(VectorType) -> Result<Conversion>,
) -> Result<VectorQuality> {
    let dimensions = vectors.first().map_or(0, Vec::len);
    let stored = |wanted| {
        let conversion = conversion(wanted)?;
        let convert = |vector: &Vec<f32>| {
            let mut vector = vector.clone();
            normalize(&mut vector);
            conversion.convert(vector).bytes()
        };
        Ok::<_, Error>(vectors.iter().map(convert).collect::<Vec<Vec<u8>>>())
    };
    let exact = neighbours(vectors.iter().map(Vec::as_slice), cosine);
    let share = |found: Vec<Vec<usize>>| {
        let kept = exact.iter().zip(&found);
        let kept =
            kept.map(|(exact, found)| exact.iter().filter(|text| found.contains(text)).count());
        kept.sum::<usize>() as f32 / exact.iter().map(Vec::len).sum::<usize>().max(1) as f32
    };
    let binary = match dimensions % 8 {
        0 => {
            let bytes = stored(VectorType::Ubinary)?;
            let hamming = |left: &[u8], right: &[u8]| {
                -(left
                    .iter()
                    .zip(right)
                    .map(|(left, right)| (left ^ right).count_ones())
                    .sum::<u32>() as f32)
            };
            Some(share(neighbours(bytes.iter().map(Vec::as_slice), hamming)))
        }
        _ => None,
    };
    let signed = |bytes: Vec<u8>| {
        bytes
            .iter()
            .map(|byte| f32::from(byte.cast_signed()))
            .collect::<Vec<f32>>()
    };
    let integers: Vec<Vec<f32>> = stored(VectorType::Int8)?.into_iter().map(signed).collect();
    let int8 = share(neighbours(integers.iter().map(Vec::as_slice), cosine));
    Ok(VectorQuality {
        texts: vectors.len(),
        int8,
        binary,
    })
}

fn neighbours<'a, V: ?Sized + 'a>(
    vectors: impl Iterator<Item = &'a V>,
    similarity: impl Fn(&V, &V) -> f32,
) -> Vec<Vec<usize>> {
    let vectors: Vec<&V> = vectors.collect();
    let similarities = |text: usize| {
        vectors
            .iter()
            .map(|other| similarity(vectors[text], other))
            .collect::<Vec<_>>()
    };
    (0..vectors.len())
        .map(|text| nearest(&similarities(text), text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_more_neighbours_than_bits() {
        let mut random = fastrand::Rng::with_seed(1);
        let vectors: Vec<Vec<f32>> = (0..60)
            .map(|_| (0..64).map(|_| random.f32() * 2.0 - 1.0).collect())
            .collect();
        let measured = |vectors: &[Vec<f32>]| {
            let ranges = Ranges::of(vectors);
            quality(vectors, |wanted| {
                Conversion::new(wanted, vectors[0].len(), Some(&ranges))
            })
            .unwrap()
        };
        let found = measured(&vectors);
        let binary = found.binary.unwrap();
        assert!(
            found.int8 > 0.97 && binary > 0.3 && binary < found.int8,
            "{found:?}"
        );
        let odd: Vec<Vec<f32>> = vectors.iter().map(|vector| vector[..63].to_vec()).collect();
        assert_eq!(measured(&odd).binary, None);
    }
}
