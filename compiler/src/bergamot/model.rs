//! A Bergamot student as a translation model, with matrix names as in other families.

use std::collections::BTreeMap;

use super::file::{File, Options, WORDS};
use crate::{
    files::{
        config::head_width,
        weights::{Weight, Weights},
    },
    onnx::layers::{Activation, NormKind},
    seq2seq::{
        Memory, Names, Norms, Positions, Seq2SeqModel, Sinusoids, Stack, Table, Tables, Waves,
    },
};
use kivu::{Error, Result};

/// Class name; the files do not state it.
const ARCHITECTURE: &str = "BergamotStudent";
/// Maximum number of decoder steps: 2.5 times the source token limit, and the first step.
pub const MAX_POSITIONS: usize = 1281;
const SINUSOIDS: Sinusoids = Sinusoids {
    length: MAX_POSITIONS,
    waves: Waves::ToTheEnd,
    padding: None,
};
/// Marian's normalization epsilon.
const EPSILON: f32 = 1e-6;

const SHARED: &str = "shared.weight";
const BIAS: &str = "final_logits_bias";

/// Required option values.
const OPTIONS: [(&str, &str); 9] = [
    ("type", "transformer"),
    ("dec-cell", "ssru"),
    ("transformer-decoder-autoreg", "rnn"),
    ("tied-embeddings-all", "true"),
    ("transformer-preprocess", ""),
    ("transformer-postprocess", "dan"),
    ("transformer-postprocess-top", ""),
    ("transformer-ffn-activation", "relu"),
    ("transformer-train-position-embeddings", "false"),
];

/// Builds the model and its weights; `sha256` is the file's hash.
pub fn model(file: File, sha256: String) -> Result<(Seq2SeqModel, Weights)> {
    let File { matrices, options } = file;
    let rows = matrices
        .get(WORDS)
        .and_then(|matrix| matrix.shape.first().copied());
    let model = describe(&options, rows.ok_or_else(|| missing(WORDS))?)?;
    let mut matrices = Matrices {
        file: matrices,
        renamed: BTreeMap::new(),
    };
    matrices.rename(WORDS, SHARED)?;
    matrices.rename("decoder_ff_logit_out_b", BIAS)?;
    for layer in 0..model.encoder.layers {
        let (theirs, ours) = (
            format!("encoder_l{}", layer + 1),
            format!("encoder.layers.{layer}"),
        );
        matrices.attention(&format!("{theirs}_self"), &format!("{ours}.self_attn"))?;
        matrices.feed_forward(&theirs, &ours)?;
    }
    for layer in 0..model.decoder.layers {
        let (theirs, ours) = (
            format!("decoder_l{}", layer + 1),
            format!("decoder.layers.{layer}"),
        );
        matrices.memory(&theirs, &ours, model.hidden)?;
        matrices.attention(
            &format!("{theirs}_context"),
            &format!("{ours}.encoder_attn"),
        )?;
        matrices.feed_forward(&theirs, &ours)?;
    }
    Ok((model, Weights::of_tensors(matrices.renamed, sha256)))
}

fn describe(options: &Options, vocabulary: usize) -> Result<Seq2SeqModel> {
    for (name, expected) in OPTIONS {
        if options.text(name) != expected {
            return Err(Error::model(format!(
                "expected a Bergamot student with the option `{name}` `{expected}`, but found `{}`",
                options.text(name)
            )));
        }
    }
    let hidden = options.number("dim-emb")?;
    let heads = options.number("transformer-heads")?;
    let head = head_width(hidden, heads)?;
    let intermediate = options.number("transformer-dim-ffn")?;
    let stack = |layers| Stack {
        layers,
        heads,
        head,
        intermediate,
    };
    let words = Table {
        name: SHARED.into(),
        rows: vocabulary,
    };
    Ok(Seq2SeqModel {
        architecture: ARCHITECTURE.into(),
        hidden,
        encoder: stack(options.number("enc-depth")?),
        decoder: stack(options.number("dec-depth")?),
        tables: Tables {
            source: words.clone(),
            target: words.clone(),
            output: words,
            bias: Some(BIAS.into()),
        },
        names: Names::Fairseq,
        has_biases: true,
        activation: Activation::Relu,
        is_gated: false,
        norms: Norms::After,
        norm: NormKind::Layer { has_bias: true },
        epsilon: EPSILON,
        positions: Positions::Sinusoidal(SINUSOIDS),
        scale: (hidden as f32).sqrt(),
        normalizes_embeddings: false,
        attention_scale: None,
        output_scale: 1.0,
        memory: Memory::Recurrent,
        is_trained_in_int8: true,
        starts_empty: true,
        has_shortlist: true,
    })
}

fn missing(name: &str) -> Error {
    Error::model(format!(
        "expected the matrix `{name}` in the model, but found no such matrix"
    ))
}

/// The file's matrices, and the renamed ones.
struct Matrices {
    file: BTreeMap<String, Weight>,
    renamed: BTreeMap<String, Weight>,
}

impl Matrices {
    fn rename(&mut self, theirs: &str, ours: &str) -> Result<()> {
        let mut matrix = self.file.remove(theirs).ok_or_else(|| missing(theirs))?;
        // Vectors are stored as matrices with one row.
        if ours.ends_with(".bias") || ours.ends_with("_norm.weight") {
            matrix.shape = vec![matrix.values.len()];
        }
        self.renamed.insert(ours.to_owned(), matrix);
        Ok(())
    }

    fn norm(&mut self, theirs: &str, ours: &str) -> Result<()> {
        self.rename(&format!("{theirs}_ln_scale"), &format!("{ours}.weight"))?;
        self.rename(&format!("{theirs}_ln_bias"), &format!("{ours}.bias"))
    }

    fn attention(&mut self, theirs: &str, ours: &str) -> Result<()> {
        for (letter, part) in [
            ("q", "q_proj"),
            ("k", "k_proj"),
            ("v", "v_proj"),
            ("o", "out_proj"),
        ] {
            self.rename(
                &format!("{theirs}_W{letter}"),
                &format!("{ours}.{part}.weight"),
            )?;
            self.rename(
                &format!("{theirs}_b{letter}"),
                &format!("{ours}.{part}.bias"),
            )?;
        }
        self.norm(&format!("{theirs}_Wo"), &format!("{ours}_layer_norm"))
    }

    fn feed_forward(&mut self, theirs: &str, ours: &str) -> Result<()> {
        for number in [1, 2] {
            self.rename(
                &format!("{theirs}_ffn_W{number}"),
                &format!("{ours}.fc{number}.weight"),
            )?;
            self.rename(
                &format!("{theirs}_ffn_b{number}"),
                &format!("{ours}.fc{number}.bias"),
            )?;
        }
        self.norm(
            &format!("{theirs}_ffn_ffn"),
            &format!("{ours}.final_layer_norm"),
        )
    }

    /// The SSRU; its candidate has no bias.
    fn memory(&mut self, theirs: &str, ours: &str, hidden: usize) -> Result<()> {
        self.rename(
            &format!("{theirs}_rnn_W"),
            &format!("{ours}.rnn.candidate.weight"),
        )?;
        self.rename(
            &format!("{theirs}_rnn_Wf"),
            &format!("{ours}.rnn.forget.weight"),
        )?;
        self.rename(
            &format!("{theirs}_rnn_bf"),
            &format!("{ours}.rnn.forget.bias"),
        )?;
        let zeros = Weight {
            shape: vec![hidden],
            values: vec![0.0; hidden],
        };
        self.renamed
            .insert(format!("{ours}.rnn.candidate.bias"), zeros);
        self.norm(
            &format!("{theirs}_rnn_ffn"),
            &format!("{ours}.self_attn_layer_norm"),
        )
    }
}
