//! A Bergamot student as a translation model: its matrices under the names of the other families.

use std::collections::BTreeMap;

use super::file::{File, Options, WORDS};
use crate::{
    build::{
        encoder::require_heads_fit,
        layers::Activation,
        translation::{Memory, Norms, Positions, Stack, Table, Tables, TranslationModel, Waves},
        weights::{Weight, Weights},
    },
    error::{Error, Result},
};

/// The class, which these files do not name.
pub(super) const ARCHITECTURE: &str = "BergamotStudent";
/// The tokens that the decoder can be fed: [`LENGTH_FACTOR`](super::LENGTH_FACTOR) times the most that are read, and its first.
pub(in crate::build) const MAX_POSITIONS: usize = 1281;
/// Marian's own.
const EPSILON: f32 = 1e-6;

const SHARED: &str = "shared.weight";
const BIAS: &str = "final_logits_bias";

/// The options by which the one kind of model that is known is told from others.
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

/// The model that a file holds, and its weights; `sha256` is the file's.
pub(super) fn model(file: File, sha256: String) -> Result<(TranslationModel, Weights)> {
    let File { matrices, options } = file;
    let mut matrices = Matrices { file: matrices, renamed: BTreeMap::new() };
    let model = describe(&options, matrices.rows(WORDS)?)?;
    matrices.rename(WORDS, SHARED)?;
    matrices.rename("decoder_ff_logit_out_b", BIAS)?;
    for layer in 0..model.encoder.layers {
        let (theirs, ours) = (format!("encoder_l{}", layer + 1), format!("encoder.layers.{layer}"));
        matrices.attention(&format!("{theirs}_self"), &format!("{ours}.self_attn"))?;
        matrices.feed_forward(&theirs, &ours)?;
    }
    for layer in 0..model.decoder.layers {
        let (theirs, ours) = (format!("decoder_l{}", layer + 1), format!("decoder.layers.{layer}"));
        matrices.memory(&theirs, &ours, model.hidden)?;
        matrices.attention(&format!("{theirs}_context"), &format!("{ours}.encoder_attn"))?;
        matrices.feed_forward(&theirs, &ours)?;
    }
    Ok((model, Weights::of_tensors(matrices.renamed, sha256)))
}

fn describe(options: &Options, vocabulary: usize) -> Result<TranslationModel> {
    for (name, wanted) in OPTIONS {
        if options.text(name) != wanted {
            return Err(Error::model(format!(
                "expected a Bergamot student, whose option `{name}` is `{wanted}`, but found `{}`",
                options.text(name)
            )));
        }
    }
    let hidden = options.number("dim-emb")?;
    let heads = options.number("transformer-heads")?;
    require_heads_fit(hidden, heads)?;
    let intermediate = options.number("transformer-dim-ffn")?;
    let stack = |layers| Stack { layers, heads, intermediate };
    let words = Table { name: SHARED.into(), rows: vocabulary };
    Ok(TranslationModel {
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
        activation: Activation::Relu,
        norms: Norms::After,
        epsilon: EPSILON,
        positions: Positions { length: MAX_POSITIONS, waves: Waves::ToTheEnd, padding: None },
        scale: (hidden as f32).sqrt(),
        memory: Memory::Recurrent,
        trained_in_integers: true,
        starts_empty: true,
        has_shortlist: true,
    })
}

/// The matrices of a file on their way to other names.
struct Matrices {
    file: BTreeMap<String, Weight>,
    renamed: BTreeMap<String, Weight>,
}

impl Matrices {
    fn rows(&self, name: &str) -> Result<usize> {
        let rows = self.file.get(name).and_then(|matrix| matrix.shape.first().copied());
        rows.ok_or_else(|| Self::lacks(name))
    }

    fn lacks(name: &str) -> Error {
        Error::model(format!("expected the matrix `{name}` in the model, but found none of that name"))
    }

    fn rename(&mut self, theirs: &str, ours: &str) -> Result<()> {
        let matrix = self.file.remove(theirs).ok_or_else(|| Self::lacks(theirs))?;
        self.renamed.insert(ours.to_owned(), matrix);
        Ok(())
    }

    /// A matrix of a single row, as the list of its values.
    fn rename_row(&mut self, theirs: &str, ours: &str) -> Result<()> {
        self.rename(theirs, ours)?;
        if let Some(row) = self.renamed.get_mut(ours) {
            row.shape = vec![row.values.len()];
        }
        Ok(())
    }

    fn norm(&mut self, theirs: &str, ours: &str) -> Result<()> {
        self.rename_row(&format!("{theirs}_ln_scale"), &format!("{ours}.weight"))?;
        self.rename_row(&format!("{theirs}_ln_bias"), &format!("{ours}.bias"))
    }

    fn attention(&mut self, theirs: &str, ours: &str) -> Result<()> {
        for (letter, part) in [("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")] {
            self.rename(&format!("{theirs}_W{letter}"), &format!("{ours}.{part}.weight"))?;
            self.rename_row(&format!("{theirs}_b{letter}"), &format!("{ours}.{part}.bias"))?;
        }
        self.norm(&format!("{theirs}_Wo"), &format!("{ours}_layer_norm"))
    }

    fn feed_forward(&mut self, theirs: &str, ours: &str) -> Result<()> {
        for number in [1, 2] {
            self.rename(&format!("{theirs}_ffn_W{number}"), &format!("{ours}.fc{number}.weight"))?;
            self.rename_row(&format!("{theirs}_ffn_b{number}"), &format!("{ours}.fc{number}.bias"))?;
        }
        self.norm(&format!("{theirs}_ffn_ffn"), &format!("{ours}.final_layer_norm"))
    }

    /// The memory, whose candidate has no bias of its own.
    fn memory(&mut self, theirs: &str, ours: &str, hidden: usize) -> Result<()> {
        self.rename(&format!("{theirs}_rnn_W"), &format!("{ours}.rnn.candidate.weight"))?;
        self.rename(&format!("{theirs}_rnn_Wf"), &format!("{ours}.rnn.forget.weight"))?;
        self.rename_row(&format!("{theirs}_rnn_bf"), &format!("{ours}.rnn.forget.bias"))?;
        let nothing = Weight { shape: vec![hidden], values: vec![0.0; hidden] };
        self.renamed.insert(format!("{ours}.rnn.candidate.bias"), nothing);
        self.norm(&format!("{theirs}_rnn_ffn"), &format!("{ours}.self_attn_layer_norm"))
    }
}
