//! Legal combinations of precision, engine and model kind, and what each of them means.

use super::manifest::{Manifest, Precision};
use kivu_core::backend::{Engine, native, processor::Int8Instructions};

/// Architecture name for static embeddings in manifests.
pub const STATIC_EMBEDDING: &str = "StaticEmbedding";

/// Architecture name for fastText's classifiers in manifests.
pub const FAST_TEXT: &str = "fastText";

/// Model kinds that store their weights differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A transformer encoder, or a decoder without generation.
    Encoder,
    /// Static embeddings and fastText's classifiers: a vector per token.
    Table,
    /// A model that generates texts.
    Generator,
    /// An ONNX graph from another exporter.
    Export,
}

/// How a bundle stores its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// 32-bit floats.
    Fp32,
    /// A graph as its author exported it.
    Exported(Precision),
    /// A vector table.
    Table(Precision),
    /// An encoder in `int8` for the native engine.
    NativeInt8,
    /// An encoder in `int8-blocks` for the native engine.
    NativeBlocks,
    /// An encoder in `int8` for ONNX Runtime.
    OnnxInt8,
    /// An encoder in `int8-blocks` for ONNX Runtime.
    OnnxBlocks,
    /// A text generator in `int8`.
    GeneratorInt8,
    /// A text generator in `int8-blocks`.
    GeneratorBlocks,
}

/// The products of a graph in `int8`, in ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8Products {
    /// With weights in fp32, computed when the graph is loaded.
    Fp32,
    /// With signed weights, which saturate on processors without VNNI.
    Signed,
    /// With weights that are converted to unsigned ones where signed ones saturate.
    Unsigned,
}

impl WeightForm {
    /// Weight form for a precision and the engine that a bundle is built for.
    pub fn new(precision: Precision, engine: Engine, kind: ModelKind) -> Self {
        match (kind, precision, engine) {
            (ModelKind::Export, ..) => Self::Exported(precision),
            (ModelKind::Table, ..) => Self::Table(precision),
            (_, Precision::Fp32, _) => Self::Fp32,
            (ModelKind::Generator, Precision::Int8, _) => Self::GeneratorInt8,
            (ModelKind::Generator, Precision::Int8Blocks, _) => Self::GeneratorBlocks,
            (ModelKind::Encoder, Precision::Int8, Engine::Native) => Self::NativeInt8,
            (ModelKind::Encoder, Precision::Int8, Engine::Onnx) => Self::OnnxInt8,
            (ModelKind::Encoder, Precision::Int8Blocks, Engine::Native) => Self::NativeBlocks,
            (ModelKind::Encoder, Precision::Int8Blocks, Engine::Onnx) => Self::OnnxBlocks,
        }
    }

    /// A bundle's weight form. Exports count as encoders and generators, whose arithmetic they have.
    pub fn of(manifest: &Manifest) -> Self {
        let kind = if manifest.settings.seq2seq().is_some() {
            ModelKind::Generator
        } else if [STATIC_EMBEDDING, FAST_TEXT].contains(&manifest.source.architecture.as_str()) {
            ModelKind::Table
        } else {
            ModelKind::Encoder
        };
        Self::new(manifest.weights.precision, manifest.engine, kind)
    }

    /// Precisions with a higher quality, the fastest first.
    pub fn fallbacks(self) -> &'static [Precision] {
        match self {
            Self::NativeInt8 | Self::OnnxInt8 | Self::GeneratorInt8 => {
                &[Precision::Int8Blocks, Precision::Fp32]
            }
            Self::Fp32
            | Self::Exported(_)
            | Self::Table(_)
            | Self::NativeBlocks
            | Self::OnnxBlocks
            | Self::GeneratorBlocks => &[Precision::Fp32],
        }
    }

    /// Storage description in manifests.
    pub fn storage(self) -> &'static str {
        match self {
            Self::Exported(_) => "as the export has them",
            Self::Fp32 | Self::Table(Precision::Fp32) => "none",
            Self::Table(Precision::Int8 | Precision::Int8Blocks) => "table: int8, one scale a row",
            Self::NativeInt8 => {
                "matrices: int8, one scale an output channel; activations: int8, one scale and minimum a token; \
                 word embeddings: int8, one scale a row; the rest: fp32"
            }
            Self::OnnxInt8 => {
                "matrices: int8, one scale an output channel, activations quantized as they come; \
                 word embeddings: int8, one scale a row; the rest: fp32"
            }
            Self::NativeBlocks | Self::OnnxBlocks => {
                "matrices: int8, one scale for every 32 weights, activations likewise; \
                 word embeddings: int8, one scale a row; the rest: fp32"
            }
            Self::GeneratorInt8 => {
                "encoder: int8, one scale an output channel and one a token, but queries, keys and values one for \
                 every 32 weights; decoder and tables: int8, one scale for every 64 to 256 weights; activations \
                 likewise; the rest: fp32"
            }
            Self::GeneratorBlocks => {
                "matrices: int8, one scale for every 32 weights, activations likewise; tables: int8, one scale for \
                 every 64 to 256 weights; the rest: fp32"
            }
        }
    }

    /// Matmul arithmetic in an engine on this processor. `products` returns those of a graph in `int8`.
    pub fn arithmetic<E>(
        self,
        engine: Engine,
        products: impl FnOnce() -> Result<Int8Products, E>,
    ) -> Result<String, E> {
        if engine == Engine::Native {
            return Ok(self.native_arithmetic());
        }
        let instructions = Int8Instructions::detected();
        Ok(match self {
            Self::Fp32 | Self::Exported(Precision::Fp32) | Self::Table(Precision::Fp32) => {
                "fp32".into()
            }
            // ONNX Runtime executes the graph function bodies.
            Self::NativeBlocks => "fp32, from int8-blocks".into(),
            Self::OnnxBlocks
            | Self::GeneratorBlocks
            | Self::Exported(Precision::Int8Blocks)
            | Self::Table(Precision::Int8Blocks) => {
                format!("int8-blocks ({instructions})")
            }
            _ => match products()? {
                Int8Products::Fp32 => "fp32, from int8".into(),
                _ if !instructions.saturate() => format!("int8 (u8·s8, {instructions})"),
                Int8Products::Signed => format!("int8 (u8·s8, {instructions}, saturating)"),
                Int8Products::Unsigned => format!("int8 (u8·u8, {instructions})"),
            },
        })
    }

    fn native_arithmetic(self) -> String {
        let instructions = native::instructions();
        let numbers = match self {
            Self::Table(precision) => return format!("{precision} (table)"),
            Self::Fp32 | Self::Exported(Precision::Fp32) => "fp32",
            Self::NativeBlocks
            | Self::OnnxBlocks
            | Self::GeneratorBlocks
            | Self::Exported(Precision::Int8Blocks) => "int8-blocks",
            Self::NativeInt8
            | Self::OnnxInt8
            | Self::GeneratorInt8
            | Self::Exported(Precision::Int8) => "int8 by token",
        };
        format!("{numbers} (native engine, {instructions})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_form_with_a_better_precision() {
        let kinds = [
            ModelKind::Encoder,
            ModelKind::Table,
            ModelKind::Generator,
            ModelKind::Export,
        ];
        for kind in kinds {
            for engine in [Engine::Native, Engine::Onnx] {
                for precision in [Precision::Int8, Precision::Int8Blocks] {
                    let form = WeightForm::new(precision, engine, kind);
                    assert!(!form.fallbacks().contains(&precision), "{form:?}");
                    assert_eq!(form.fallbacks().last(), Some(&Precision::Fp32), "{form:?}");
                }
            }
        }
        let native = WeightForm::new(Precision::Int8, Engine::Native, ModelKind::Encoder);
        assert_eq!(native.fallbacks(), [Precision::Int8Blocks, Precision::Fp32]);
    }

    #[test]
    fn blocks_are_not_reported_as_int8_by_token() {
        let arithmetic = |form: WeightForm, engine| {
            let products = || Ok::<_, ()>(Int8Products::Fp32);
            form.arithmetic(engine, products).unwrap()
        };
        assert!(
            arithmetic(WeightForm::NativeBlocks, Engine::Native)
                .starts_with("int8-blocks (native engine")
        );
        assert!(
            arithmetic(WeightForm::NativeInt8, Engine::Native)
                .starts_with("int8 by token (native engine")
        );
        assert!(arithmetic(WeightForm::Fp32, Engine::Native).starts_with("fp32 (native engine"));
        assert_eq!(
            arithmetic(WeightForm::NativeBlocks, Engine::Onnx),
            "fp32, from int8-blocks"
        );
        assert_eq!(
            arithmetic(WeightForm::NativeInt8, Engine::Onnx),
            "fp32, from int8"
        );
    }
}
