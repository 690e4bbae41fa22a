//! Embedding: dense vectors, sparse vectors and multi-vectors.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Scope, TruncationParameters};
use kivu_base::{Error, Result, json::flattened};
use kivu_core::{
    backend::Deadline,
    pipeline::{
        Input,
        embedding::{
            EmbeddingOptions, EmbeddingPipeline, Embeddings, RequestedVectors, TextVectors,
            VectorKind,
            instructions::{check_instruction, check_size},
            vectors::{Conversion, VectorType},
        },
    },
};

/// Embedding parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct EmbeddingParameters {
    /// How texts above the token limit are handled.
    #[serde(flatten, deserialize_with = "flattened")]
    pub truncation: TruncationParameters,
    /// The model's prompt with this name or for this role, such as `query`
    pub prompt_name: Option<String>,
    /// A text to put before each text, instead of one of the model's prompts.
    pub prompt: Option<String>,
    /// Replaces the instruction in the model's prompt for queries, if it has one, or in the one that is named.
    pub instruction: Option<String>,
    /// The task that texts are embedded for, in a model with adapters for tasks, with the task's prompt
    pub task: Option<String>,
    /// Whether vectors are scaled to length 1; true by default.
    pub normalize: Option<bool>,
    /// Truncate vectors to this many values
    #[schemars(range(min = 1))]
    pub dimensions: Option<usize>,
    /// The vectors' number format [default: float]
    pub output_dtype: Option<VectorType>,
    /// Vector kinds, which `/embed` returns in an object for each text [default: the model's first among dense, sparse and
    /// multi_vector]
    #[schemars(length(min = 1))]
    pub outputs: Option<Vec<VectorKind>>,
    /// Keep this many of a sparse vector's largest weights
    #[schemars(range(min = 1))]
    pub max_active_dims: Option<usize>,
    /// Name sparse vectors' weights by word instead of token id
    pub words: Option<bool>,
}

/// An embedding model with checked parameters.
#[derive(Clone, Debug)]
pub struct Embedder {
    /// The model.
    pub pipeline: EmbeddingPipeline,
    /// Requested vectors.
    pub requested: RequestedVectors,
    /// Options for dense vectors and multi-vectors.
    pub options: EmbeddingOptions,
    /// The dense vectors' number format.
    pub output_dtype: VectorType,
    /// Converts dense vectors to `output_dtype`.
    pub conversion: Conversion,
    has_words: bool,
}

/// A request's prompt settings.
#[derive(Clone, Copy, Debug)]
pub struct RequestedPrompt<'a> {
    /// The task, which selects adapters, and its prompt unless another is requested.
    pub task: Option<&'a str>,
    /// A prompt's name, or a role.
    pub name: Option<&'a str>,
    /// The prompt itself.
    pub prompt: Option<&'a str>,
    /// Another instruction in the model's prompt.
    pub instruction: Option<&'a str>,
}

/// The prompt for a request's texts, and the task.
pub struct ChosenPrompt {
    /// The prompt's name, or a role.
    pub name: Option<String>,
    /// The prompt itself, unless it is the model's with that name.
    pub prompt: Option<String>,
    /// The task's name in the model.
    pub task: Option<String>,
}

impl RequestedPrompt<'_> {
    /// Checks the request against the model.
    pub fn choose(self, pipeline: &EmbeddingPipeline) -> Result<ChosenPrompt> {
        let (mut name, prompt) = self.named(pipeline)?;
        let task = self
            .task
            .map(|task| pipeline.settings().task_name(task))
            .transpose()?;
        if name.is_none() && prompt.is_none() {
            name = task.map(str::to_owned);
        }
        Ok(ChosenPrompt {
            name,
            prompt,
            task: task.map(str::to_owned),
        })
    }

    fn named(self, pipeline: &EmbeddingPipeline) -> Result<(Option<String>, Option<String>)> {
        match (self.name, self.prompt, self.instruction) {
            (name, None, None) => Ok((name.map(str::to_owned), None)),
            (None, Some(prompt), None) => {
                check_size("prompt", prompt)?;
                Ok((None, Some(prompt.to_owned())))
            }
            (name, None, Some(instruction)) => {
                check_instruction("instruction", instruction)?;
                let (name, prompt) = pipeline.settings().instructed(name, instruction)?;
                Ok((name, Some(prompt)))
            }
            _ => Err(Error::invalid(
                "expected `prompt` without `prompt_name` (or a role) and `instruction`, but found \
                 several",
            )
            .with_hint("leave out the others")),
        }
    }
}

impl EmbeddingParameters {
    /// The options with the defaults in `scope`.
    pub fn options(&self, pipeline: &EmbeddingPipeline, scope: &Scope) -> Result<EmbeddingOptions> {
        let requested = RequestedPrompt {
            name: self.prompt_name.as_deref(),
            prompt: self.prompt.as_deref(),
            instruction: self.instruction.as_deref(),
            task: self.task.as_deref(),
        };
        let ChosenPrompt {
            name: prompt_name,
            prompt,
            task,
        } = requested.choose(pipeline)?;
        Ok(EmbeddingOptions {
            truncation: self.truncation.truncation(scope),
            normalize: self.normalize,
            prompt_name,
            prompt,
            task,
            dimensions: self.dimensions,
            max_values: scope.max_values,
        })
    }

    /// Checks the parameters. The default for `outputs` is the model's first vector kind.
    pub fn prepare(&self, pipeline: &EmbeddingPipeline, scope: &Scope) -> Result<Embedder> {
        let kinds = self.kinds(pipeline);
        if kinds.is_empty() {
            return Err(Error::invalid(
                "expected `outputs` among `dense`, `sparse`, `multi_vector`, but found an empty list",
            ));
        }
        let output_dtype = self.output_dtype.unwrap_or_default();
        let mut options = self.options(pipeline, scope)?;
        let conversion = match kinds.contains(&VectorKind::Dense) {
            true => self.conversion(pipeline)?,
            false => Conversion::Float,
        };
        if matches!(conversion, Conversion::Integers { .. }) {
            options.normalize = Some(true);
        }
        let requested = RequestedVectors {
            kinds,
            max_active_dims: self.max_active_dims,
        };
        pipeline.check(&requested)?;
        let has_words = self.words.unwrap_or(false);
        Ok(Embedder {
            pipeline: pipeline.clone(),
            requested,
            options,
            output_dtype,
            conversion,
            has_words,
        })
    }

    /// The requested vector kinds, or the model's first.
    fn kinds(&self, pipeline: &EmbeddingPipeline) -> Vec<VectorKind> {
        let first = || {
            pipeline
                .settings()
                .outputs()
                .into_iter()
                .take(1)
                .map(|(kind, _)| kind)
                .collect()
        };
        self.outputs.clone().unwrap_or_else(first)
    }

    /// An argument's name, if it has no effect on the requested vectors.
    pub fn without_effect(&self, pipeline: &EmbeddingPipeline) -> Option<&'static str> {
        let (kinds, dense) = (self.kinds(pipeline), &[VectorKind::Dense][..]);
        let (scaled, sparse) = (
            &[VectorKind::Dense, VectorKind::MultiVector][..],
            &[VectorKind::Sparse][..],
        );
        let arguments = [
            ("dimensions", self.dimensions.is_some(), dense),
            ("vector-type", self.output_dtype.is_some(), dense),
            ("normalize", self.normalize.is_some(), scaled),
            ("max-active-dims", self.max_active_dims.is_some(), sparse),
            ("words", self.words.is_some(), sparse),
        ];
        arguments
            .iter()
            .find(|(_, is_set, of)| *is_set && !of.iter().any(|kind| kinds.contains(kind)))
            .map(|(name, ..)| *name)
    }

    /// Applies the defaults for vectors per token, which the pipeline checks.
    pub fn prepare_tokens(
        &self,
        pipeline: &EmbeddingPipeline,
        scope: &Scope,
    ) -> Result<TokenEmbedder> {
        Ok(TokenEmbedder {
            pipeline: pipeline.clone(),
            options: self.options(pipeline, scope)?,
        })
    }

    /// The conversion of dense vectors to `output_dtype`.
    fn conversion(&self, pipeline: &EmbeddingPipeline) -> Result<Conversion> {
        let wanted = self.output_dtype.unwrap_or_default();
        if matches!(wanted, VectorType::Int8 | VectorType::Uint8) && self.normalize == Some(false) {
            return Err(Error::invalid(format!(
                "expected normalized vectors for the type `{wanted}`, whose ranges are those of normalized vectors, but \
                 found `normalize` false"
            )));
        }
        pipeline.conversion(wanted, self.dimensions)
    }
}

/// An embedding model for vectors per token, with its parameters.
#[derive(Clone, Debug)]
pub struct TokenEmbedder {
    pipeline: EmbeddingPipeline,
    options: EmbeddingOptions,
}

impl TokenEmbedder {
    /// Multi-vectors if the model has them, or else its token vectors without pooling or normalization.
    pub fn run(
        &self,
        inputs: Vec<Input>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Embeddings<Vec<Vec<f32>>>>> {
        Box::pin(self.pipeline.embed_all(inputs, &self.options, deadline))
    }
}

impl Embedder {
    /// Embeds texts, in one run for all vector kinds.
    pub fn run(
        &self,
        inputs: Vec<Input>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Embeddings<TextVectors>>> {
        Box::pin(
            self.pipeline
                .embed_kinds(inputs, &self.requested, &self.options, deadline),
        )
    }

    /// A token's word, if words are requested and the token has one.
    pub fn word(&self, id: u32) -> Option<String> {
        self.has_words
            .then(|| self.pipeline.encoder().tokenizer().token(id))?
    }
}
