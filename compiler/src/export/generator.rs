//! Encoder-decoder exports, rewritten as one encoder, which also computes cross-attention keys and values, and one
//! decoder, which runs every step.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{
    part::{keep, rename, with_rows_of, within},
    quantize::{check_precision, is_quantized, prepare},
    text_encoder::check_outputs,
};
use crate::{
    onnx,
    plan::{
        Build,
        opened_model::{self, WriteGraphs},
    },
    quantize::layer_calibration::Calibration,
};
use kivu::{
    Error, Result,
    error::quoted,
    hexadecimal::hex,
    onnx_proto::{GraphProto, ModelProto},
};

/// Export files.
pub const ENCODER: &str = "encoder_model.onnx";
pub const MERGED: &str = "decoder_model_merged.onnx";
pub const FIRST: &str = "decoder_model.onnx";
pub const LATER: &str = "decoder_with_past_model.onnx";
/// Folders that may contain them.
pub const FOLDERS: [&str; 2] = ["", "onnx"];

/// Decoder inputs that come from the encoder, with the encoder's names.
const SHARED: [(&str, &str); 2] = [
    ("encoder_hidden_states", "last_hidden_state"),
    ("encoder_attention_mask", "attention_mask"),
];
/// Prefix for names that move into the encoder, to avoid clashes.
const MOVED: &str = "decoder/";

/// An encoder and a decoder with [`OnnxSeq2Seq`](kivu::onnx::OnnxSeq2Seq)'s inputs and outputs.
#[derive(Debug)]
pub struct Seq2Seq {
    /// Runs once per text.
    pub encoder: ModelProto,
    /// Runs once per token.
    pub decoder: ModelProto,
}

/// Whether `folder` has such an export.
pub fn is_in(folder: &Path) -> bool {
    inner(folder).join(ENCODER).is_file()
}

/// Reads the export in the plan's folder: the SHA-256 of its files' SHA-256s, whether its weights are quantized, and
/// its graphs.
pub fn open(build: Build<'_>) -> Result<(String, bool, WriteGraphs<'_>)> {
    let plan = build.plan;
    let inner = inner(&plan.folder);
    let Seq2Seq { encoder, decoder } = read(&plan.folder)?;
    let names: &[&str] = match inner.join(MERGED).is_file() {
        true => &[ENCODER, MERGED],
        false => &[ENCODER, FIRST, LATER],
    };
    let hashes = names.iter().map(|name| onnx::sha256(&inner.join(name)));
    let sha256 = hex(&Sha256::digest(hashes.collect::<Result<String>>()?));
    let is_quantized = is_quantized(&encoder) && is_quantized(&decoder);
    check_precision(plan.precision, [is_quantized, false], &inner)?;
    let graphs = move |precision, _: Option<&Calibration>| {
        let encoder = prepare(&encoder, precision, build)?;
        Ok(vec![
            (opened_model::ENCODER, encoder),
            (opened_model::DECODER, prepare(&decoder, precision, build)?),
        ])
    };
    Ok((sha256, is_quantized, Box::new(graphs)))
}

/// Reads the export in `folder`.
pub fn read(folder: &Path) -> Result<Seq2Seq> {
    let folder = inner(folder);
    let encoder = onnx::read(&folder.join(ENCODER))?;
    let (first, later, decoder) = if folder.join(MERGED).is_file() {
        let merged = onnx::read(&folder.join(MERGED))?;
        let (first, later) = branches(&merged)?;
        (first, later, merged)
    } else if folder.join(FIRST).is_file() && folder.join(LATER).is_file() {
        let later = onnx::read(&folder.join(LATER))?;
        (
            graph_of(onnx::read(&folder.join(FIRST))?),
            graph_of(later.clone()),
            later,
        )
    } else {
        return Err(Error::model(format!(
            "expected a decoder next to `{ENCODER}`: `{MERGED}`, or `{FIRST}` and `{LATER}`, but found none of them"
        )));
    };
    [&encoder, &decoder]
        .into_iter()
        .try_for_each(check_outputs)?;
    Ok(Seq2Seq {
        encoder: ModelProto {
            graph: Some(with_cross(graph_of(encoder.clone()), first)?),
            ..encoder
        },
        decoder: ModelProto {
            graph: Some(stepping(later)),
            ..decoder
        },
    })
}

/// Finds the folder with the graphs.
fn inner(folder: &Path) -> PathBuf {
    let inner = FOLDERS
        .iter()
        .map(|inner| folder.join(inner))
        .find(|inner| inner.join(ENCODER).is_file());
    inner.unwrap_or_else(|| folder.to_owned())
}

fn graph_of(model: ModelProto) -> GraphProto {
    model.graph.unwrap_or_default()
}

/// The decoder's first step and its later ones, from a merged graph's two branches.
fn branches(merged: &ModelProto) -> Result<(GraphProto, GraphProto)> {
    let whole = merged.graph.clone().unwrap_or_default();
    let choice = whole.node.iter().find(|node| node.op_type == "If");
    let branch = |name: &str| {
        let attributes = choice.into_iter().flat_map(|node| &node.attribute);
        let graph = attributes
            .into_iter()
            .find(|attribute| attribute.name == name)?
            .g
            .clone()?;
        Some(within(&whole, graph))
    };
    branch("else_branch")
        .zip(branch("then_branch"))
        .ok_or_else(|| {
            Error::model(format!(
                "expected an `If` with two branches in `{MERGED}`, but found none"
            ))
        })
}

/// The encoder plus the first decoder step's nodes that depend only on the encoder.
fn with_cross(mut encoder: GraphProto, first: GraphProto) -> Result<GraphProto> {
    let outputs: Vec<String> = first
        .output
        .iter()
        .map(|output| output.name.clone())
        .collect();
    let cross = |name: &str| cross_name(name, "present.");
    let mut moved = keep(with_rows_of(first, SHARED[0].0), |name| {
        cross(name).is_some()
    });
    if moved.output.is_empty() {
        return Err(Error::model(format!(
            "expected outputs `present.….encoder.key` of the decoder, but found {}",
            quoted(&outputs)
        ))
        .with_hint("export the model with past"));
    }
    let shared = |name: &str| {
        SHARED
            .iter()
            .find(|(shared, _)| *shared == name)
            .map(|(_, own)| (*own).to_owned())
    };
    if let Some(other) = moved
        .input
        .iter()
        .find(|input| shared(&input.name).is_none())
    {
        return Err(Error::model(format!(
            "expected keys and values of cross attention that depend on {}, but found that they depend on `{}`",
            quoted(&SHARED.map(|(name, _)| name)),
            other.name
        )));
    }
    rename(&mut moved, &|name| {
        shared(name)
            .or_else(|| cross(name))
            .unwrap_or_else(|| format!("{MOVED}{name}"))
    });
    encoder.node.extend(moved.node);
    encoder.initializer.extend(moved.initializer);
    encoder.output = moved.output;
    Ok(encoder)
}

/// The decoder's later steps, with [`Seq2Seq`]'s names.
fn stepping(later: GraphProto) -> GraphProto {
    let mut steps = keep(later, |name| {
        name == "logits" || own_name(name, "present.").is_some()
    });
    rename(&mut steps, &|name| {
        let past = own_name(name, "past_key_values.").map(|name| format!("past.{name}"));
        let present = own_name(name, "present.").map(|name| format!("present.{name}"));
        let cross = cross_name(name, "past_key_values.");
        match name {
            "encoder_attention_mask" => "attention_mask".to_owned(),
            // Mask for the decoder's own tokens.
            "attention_mask" => "decoder_attention_mask".to_owned(),
            name => past
                .or(present)
                .or(cross)
                .unwrap_or_else(|| name.to_owned()),
        }
    });
    steps
}

/// `N.key` or `N.value` for the decoder's own keys and values.
fn own_name(name: &str, prefix: &str) -> Option<String> {
    let (layer, kind) = name.strip_prefix(prefix)?.split_once(".decoder.")?;
    Some(format!("{layer}.{kind}"))
}

/// `cross.N.key` or `cross.N.value` for keys and values from the encoder.
fn cross_name(name: &str, prefix: &str) -> Option<String> {
    let (layer, kind) = name.strip_prefix(prefix)?.split_once(".encoder.")?;
    Some(format!("cross.{layer}.{kind}"))
}
