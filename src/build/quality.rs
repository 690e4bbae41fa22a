//! How close a quantised graph comes to its fp32 form, over real texts.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::recipe::QualityFloor;
use crate::{
    backend::onnx::{Runtime, Session},
    error::{Error, Result},
    pipeline::{embedding::EmbeddingSettings, pooling::cosine},
    repository::manifest::Quality,
    tensor::Tensor,
    tokenizer::{Encoding, Side, Tokenizer, Truncation},
};

/// Texts of mixed kinds and lengths, one a line, as real traffic has them.
pub const SENTENCES: &str = include_str!("sentences.txt");

/// The two graphs to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Graphs<'a> {
    /// The graph in fp32.
    pub reference: &'a Path,
    /// The quantised graph.
    pub quantised: &'a Path,
}

/// Embeds every sentence with both graphs and compares the vectors. `progress` is called after each sentence.
pub fn measure(
    runtime: Runtime,
    graphs: Graphs<'_>,
    tokenizer: &Tokenizer,
    settings: &EmbeddingSettings,
    progress: &(dyn Fn() + Sync),
) -> Result<Quality> {
    let encodings = SENTENCES
        .lines()
        .map(|text| tokenizer.encode(text, settings.max_tokens, Truncation::At(Side::Right)))
        .collect::<Result<Vec<_>>>()?;
    // Each at its text's place: summed in another order, the mean would differ from build to build.
    let cosines = Mutex::new(vec![f32::NAN; encodings.len()]);
    let next = AtomicUsize::new(0);
    let reference = Session::open(runtime, graphs.reference, NonZeroUsize::MIN)?;
    let quantised = Session::open(runtime, graphs.quantised, NonZeroUsize::MIN)?;
    let work = || -> Result<()> {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(encoding) = encodings.get(place) else { return Ok(()) };
            let expected = embed(&reference, encoding, settings)?;
            let found = embed(&quantised, encoding, settings)?;
            if let Ok(mut cosines) = cosines.lock() {
                cosines[place] = cosine(&expected, &found);
            }
            progress();
        }
    };
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(Error::model("measuring the quality panicked")))
        })
    })?;
    let cosines = cosines.into_inner().unwrap_or_default();
    Ok(Quality {
        texts: cosines.len(),
        mean_cosine: cosines.iter().sum::<f32>() / cosines.len().max(1) as f32,
        worst_cosine: cosines.iter().copied().min_by(f32::total_cmp).unwrap_or(f32::NAN),
    })
}

/// Refuses a quality below the floor, saying by how much.
pub fn require(quality: &Quality, floor: &QualityFloor) -> Result<()> {
    let checks = [
        ("mean", quality.mean_cosine, floor.mean_cosine),
        ("worst", quality.worst_cosine, floor.worst_cosine),
    ];
    for (which, found, least) in checks {
        if found < least || found.is_nan() {
            return Err(Error::model(format!(
                "expected a {which} cosine to fp32 of at least {least:.4} over {} texts, but found {found:.4}, \
                 which is {:.4} too low; build with `--precision fp32`, or lower the recipe's floor",
                quality.texts,
                least - found
            )));
        }
    }
    Ok(())
}

/// Embeds one sentence: a graph that cannot do that, or not as its files say, goes into no bundle.
pub fn try_out(session: &Session, tokenizer: &Tokenizer, settings: &EmbeddingSettings) -> Result<()> {
    let text = SENTENCES.lines().next().unwrap_or_default();
    let encoding = tokenizer.encode(text, settings.max_tokens, Truncation::At(Side::Right))?;
    let found = embed(session, &encoding, settings)?.len();
    if found != settings.dimensions {
        return Err(Error::model(format!(
            "expected vectors of {} values, as `config.json` says, but found {found}",
            settings.dimensions
        )));
    }
    Ok(())
}

/// The vector of one text, straight from a session.
pub fn embed(session: &Session, encoding: &Encoding, settings: &EmbeddingSettings) -> Result<Vec<f32>> {
    let inputs = inputs(session, encoding)?;
    let outputs = session.run(&inputs)?;
    let output = session.signature().output(&settings.output).and_then(|place| outputs.get(place));
    let (Some(values), Some(width)) =
        (output.and_then(Tensor::as_fp32), output.and_then(|output| output.shape().last().copied()))
    else {
        return Err(Error::model(format!("expected the float output `{}`, but found none", settings.output)));
    };
    Ok(settings.pooling.pool(values, width))
}

/// One text as the inputs that the session's graph declares.
pub fn inputs(session: &Session, encoding: &Encoding) -> Result<Vec<Tensor>> {
    let shape = [1, encoding.len()];
    session
        .signature()
        .inputs
        .iter()
        .map(|input| {
            let values = match input.name.as_str() {
                "input_ids" => encoding.ids.iter().map(|id| i64::from(*id)).collect(),
                "token_type_ids" => encoding.type_ids.iter().map(|id| i64::from(*id)).collect(),
                "attention_mask" => vec![1; encoding.len()],
                other => {
                    return Err(Error::model(format!(
                        "expected inputs among `input_ids`, `attention_mask`, `token_type_ids`, \
                         but found `{other}`"
                    )));
                }
            };
            Tensor::integers(input.element_type, shape, values)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quality(mean_cosine: f32, worst_cosine: f32) -> Quality {
        Quality { texts: 300, mean_cosine, worst_cosine }
    }

    #[test]
    fn a_quality_below_the_floor_is_refused_with_the_difference() {
        let floor = QualityFloor::default();
        assert!(require(&quality(0.991, 0.975), &floor).is_ok());
        insta::assert_snapshot!(
            require(&quality(0.95, 0.9), &floor).unwrap_err(),
            @"expected a mean cosine to fp32 of at least 0.9900 over 300 texts, but found 0.9500, which is 0.0400 too low; build with `--precision fp32`, or lower the recipe's floor"
        );
        assert!(require(&quality(0.995, 0.96), &floor).is_err());
        assert!(require(&quality(f32::NAN, f32::NAN), &floor).is_err());
    }

    #[test]
    fn the_sentences_are_many_and_of_mixed_length() {
        let lengths: Vec<usize> = SENTENCES.lines().map(str::len).collect();
        assert!(lengths.len() >= 200);
        assert!(lengths.iter().any(|length| *length < 20) && lengths.iter().any(|length| *length > 800));
    }
}
