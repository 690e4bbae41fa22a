//! Inputs to tokens, within the limits of all locations where the model runs.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{executor::tokenize, usage::Usage};
use crate::pipeline::{
    classification::pair_template::PairTemplate, embedding::roles::RoleSettings,
};
use crate::{
    backend::{Deadline, routing::Location},
    observer::record_encoding,
};
use kivu_base::{Error, Result, clock::Instant, error::at_text};
use kivu_text as tokenizer;
use kivu_text::{Encoding, Tokenizer, Truncation, Window, WindowOptions, WordPrompt};

/// Maximum input bytes per request, for tasks whose results are far larger than vectors or that read a text several
/// times: a text paired with a thousand labels counts a thousand times.
pub const MAX_BYTES: usize = 32 * 1024 * 1024;

/// An encoder input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text.
    Text(String),
    /// Two texts that the model reads together. Shared, since a long text may be in many pairs.
    Pair(Arc<str>, Arc<str>),
    /// Token ids, special tokens included.
    Ids(Vec<u32>),
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Input {
    /// Its texts; none for token ids.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Text(text) => (Some(text.as_str()), None),
            Self::Pair(first, second) => (Some(&**first), Some(&**second)),
            Self::Ids(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Size in bytes; a text longer than `reach` counts as `reach`.
    fn size(&self, reach: usize) -> usize {
        match self {
            Self::Text(text) => text.len().min(reach),
            Self::Pair(first, second) => first.len().min(reach) + second.len().min(reach),
            Self::Ids(ids) => size_of_val(ids.as_slice()),
        }
    }
}

/// How inputs become tokens.
pub struct EncodingOptions<'a> {
    /// Put before each text.
    pub prompt: Option<&'a str>,
    /// Leading tokens of texts with the prompt that pooling leaves out.
    pub unpooled: usize,
    /// Put around each pair.
    pub template: Option<&'a PairTemplate>,
    /// How inputs above the token limit are shortened or refused.
    pub truncation: Truncation,
    /// Maximum input bytes; each text counts up to the length that can be read.
    pub max_bytes: usize,
    /// Text form for the role.
    pub role: Option<&'a RoleSettings>,
    /// Number of inputs that are made from each text, one after the other.
    pub inputs_per_text: usize,
}

impl EncodingOptions<'_> {
    /// Options without prompt, template, size limit and role.
    pub fn new(truncation: Truncation) -> Self {
        Self {
            prompt: None,
            unpooled: 0,
            template: None,
            truncation,
            max_bytes: usize::MAX,
            role: None,
            inputs_per_text: 1,
        }
    }
}

/// A request's inputs as tokens, with the tokenization time.
pub struct Encodings {
    /// Tokens per input.
    pub list: Vec<Encoding>,
    /// Source texts per input, for models with a built-in tokenizer; `None` for pairs and token ids.
    pub texts: Vec<Option<String>>,
    /// Concatenated label vectors for all inputs, in models that take them.
    pub labels: Option<Arc<[f32]>>,
    tokenization: Duration,
    /// See [`EncodingOptions::inputs_per_text`].
    inputs_per_text: usize,
}

impl Encodings {
    /// One input per text, without labels.
    fn new(list: Vec<Encoding>, texts: Vec<Option<String>>, tokenization: Duration) -> Self {
        Self {
            list,
            texts,
            labels: None,
            tokenization,
            inputs_per_text: 1,
        }
    }

    /// Token ids of the input at `index`, special tokens included.
    pub fn ids(&self, index: usize) -> &[u32] {
        &self.list[index].ids
    }

    /// Sets all inputs' task, by its number.
    pub fn set_task(&mut self, task: u32) {
        self.list
            .iter_mut()
            .for_each(|encoding| encoding.task = task);
    }

    /// Refuses inputs with one of these tokens, in place of which a model reads images or sound.
    pub fn refuse(&self, placeholders: &[u32]) -> Result<()> {
        let texts = self.list.len() / self.inputs_per_text;
        for (index, encoding) in self.list.iter().enumerate() {
            if let Some(id) = encoding.ids.iter().find(|id| placeholders.contains(id)) {
                let error = Error::invalid(format!(
                    "token {id} is the place of an image or a sound, which the model does not read"
                ))
                .with_hint("remove it from the text");
                return Err(at_text(error, index / self.inputs_per_text, texts));
            }
        }
        Ok(())
    }

    /// Token count of all inputs, special tokens included.
    pub fn tokens(&self) -> usize {
        self.list.iter().map(Encoding::len).sum()
    }

    /// Input count.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Usage for inputs that skip the model.
    pub fn usage_without_run(&self) -> Usage {
        self.usage(Duration::ZERO, Location::default())
    }

    /// Usage for a run at `location` whose model time is `inference`; records it in the metrics.
    pub fn usage(&self, inference: Duration, location: Location) -> Usage {
        let tokens = self.tokens();
        record_encoding(tokens, self.tokenization, inference);
        let is_truncated =
            |inputs: &[Encoding]| inputs.iter().any(|input| input.truncated_from.is_some());
        let texts = self.list.chunks(self.inputs_per_text).enumerate();
        Usage {
            tokens,
            generated: 0,
            truncated: texts
                .filter(|(_, inputs)| is_truncated(inputs))
                .map(|(text, _)| text)
                .collect(),
            tokenization: self.tokenization,
            inference,
            location,
        }
    }
}

/// A request's texts as tokens, in windows.
pub struct EncodedWindows {
    /// Tokens per window, in text order.
    pub encodings: Encodings,
    /// One place per encoding.
    pub places: Vec<WindowPlace>,
}

/// A window's place among a request's texts.
pub struct WindowPlace {
    /// Text index.
    pub text: usize,
    /// Token or word spans in the text, in characters; `None` for special tokens.
    pub spans: Vec<Option<(usize, usize)>>,
}

impl EncodedWindows {
    /// Ids and spans of a window's tokens.
    pub fn tokens(&self, window: usize) -> impl Iterator<Item = (u32, Option<(usize, usize)>)> {
        let ids = self.encodings.list[window].ids.iter().copied();
        ids.zip(self.places[window].spans.iter().copied())
    }

    /// Replaces truncated windows in their usage by their texts.
    pub fn count_texts(&self, usage: &mut Usage) {
        usage
            .truncated
            .iter_mut()
            .for_each(|window| *window = self.places[*window].text);
    }
}

/// Tokenizes a request's inputs.
pub struct InputTokenizer<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Arc<Tokenizer>,
    /// Maximum tokens per input.
    pub limit: usize,
    /// Whether the model may need texts for its built-in tokenizer.
    pub keeps_text: bool,
    /// Token dropped at the end of inputs.
    pub trailing: Option<u32>,
    /// Tokenization fails once it has passed.
    pub deadline: Deadline,
}

impl InputTokenizer<'_> {
    /// Tokenizes inputs. Errors name the text.
    pub async fn encode(
        &self,
        inputs: Vec<Input>,
        options: &EncodingOptions<'_>,
    ) -> Result<Encodings> {
        let role = options.role.cloned();
        let limit = self.limit.min(
            role.as_ref()
                .and_then(|role| role.max_tokens)
                .unwrap_or(usize::MAX),
        );
        let reach = tokenizer::reach(limit);
        let size: usize = inputs.iter().map(|input| input.size(reach)).sum();
        check_size(size, options.max_bytes)?;
        // A role inserts tokens that are not in the text.
        let (tokenizer, keeps_text) = (
            Arc::clone(self.tokenizer),
            self.keeps_text && role.is_none(),
        );
        let (prompt, unpooled) = (options.prompt.map(str::to_owned), options.unpooled);
        let truncation = options.truncation;
        let template = options.template.cloned();
        let encode = move |input: Input| -> Result<(Encoding, Option<String>)> {
            match input {
                Input::Text(text) => {
                    let text = match &prompt {
                        None => text,
                        Some(prompt) => format!("{prompt}{text}"),
                    };
                    if let Some(role) = &role {
                        return Ok((role.encode(&tokenizer, &text, limit, truncation)?, None));
                    }
                    let mut encoding = tokenizer.encode(&text, limit, truncation)?;
                    encoding.leave_unpooled(unpooled)?;
                    let text = keeps_text
                        .then(|| tokenizer.truncated_text(text, &encoding, limit, truncation));
                    Ok((encoding, text.transpose()?))
                }
                Input::Pair(first, second) if let Some(template) = &template => Ok((
                    template.encode(&tokenizer, [&first, &second], limit, truncation)?,
                    None,
                )),
                Input::Pair(first, second) => Ok((
                    tokenizer.encode_pair([&first, &second], limit, truncation)?,
                    None,
                )),
                Input::Ids(ids) => Ok((tokenizer.accept(ids, limit, truncation)?, None)),
            }
        };
        let trailing = self.trailing;
        let encode = move |input| {
            let (mut encoding, text) = encode(input)?;
            trailing
                .into_iter()
                .for_each(|token| encoding.trim_end(token));
            Ok((encoding, text))
        };
        let inputs_per_text = options.inputs_per_text;
        let sizes = InputSizes {
            bytes: size,
            inputs_per_text,
        };
        let (encoded, tokenization) = tokenize_each(inputs, sizes, self.deadline, encode).await?;
        let (list, texts) = encoded.into_iter().unzip();
        Ok(Encodings {
            inputs_per_text,
            ..Encodings::new(list, texts, tokenization)
        })
    }

    /// Tokenizes texts in windows, at most `options.max_windows` in total. Errors name the text.
    pub async fn encode_windows(
        &self,
        texts: &Arc<[String]>,
        options: WindowOptions,
    ) -> Result<EncodedWindows> {
        let windows =
            move |tokenizer: &Tokenizer, text: &str, limit| tokenizer.windows(text, limit, options);
        self.split_each(texts, options, windows).await
    }

    /// Tokenizes pre-split texts after a prompt, in windows. Errors name the text.
    pub async fn encode_words(
        &self,
        texts: &Arc<[String]>,
        prompt: WordPrompt,
        options: WindowOptions,
    ) -> Result<EncodedWindows> {
        let windows = move |tokenizer: &Tokenizer, text: &str, limit| {
            tokenizer.word_windows(text, &prompt, limit, options)
        };
        self.split_each(texts, options, windows).await
    }

    async fn split_each(
        &self,
        texts: &Arc<[String]>,
        options: WindowOptions,
        split: impl Fn(&Tokenizer, &str, usize) -> Result<Vec<Window>> + Send + 'static,
    ) -> Result<EncodedWindows> {
        let limit = self.limit;
        let reach = if options.stride.is_some() {
            usize::MAX
        } else {
            tokenizer::reach(limit)
        };
        let size: usize = texts.iter().map(|text| text.len().min(reach)).sum();
        check_size(size, MAX_BYTES)?;
        let (tokenizer, shared) = (Arc::clone(self.tokenizer), Arc::clone(texts));
        // Counted while texts are read: windows with large overlaps take far more memory than the texts.
        let found = AtomicUsize::new(0);
        let encode = move |text: usize| {
            let windows = split(&tokenizer, &shared[text], limit)?;
            match found.fetch_add(windows.len(), Ordering::Relaxed) + windows.len() {
                found if found <= options.max_windows => Ok(windows),
                _ => Err(Error::too_large(format!(
                    "expected at most {} windows in all texts, but found more",
                    options.max_windows
                ))
                .with_hint("send fewer texts, or a smaller `stride`")),
            }
        };
        let sizes = InputSizes {
            bytes: size,
            inputs_per_text: 1,
        };
        let (windows, tokenization) =
            tokenize_each((0..texts.len()).collect(), sizes, self.deadline, encode).await?;
        let windows = windows.into_iter().enumerate().flat_map(|(text, windows)| {
            windows
                .into_iter()
                .map(move |Window { encoding, spans }| (encoding, WindowPlace { text, spans }))
        });
        let (list, places): (Vec<_>, Vec<_>) = windows.unzip();
        let texts = vec![None; list.len()];
        let encodings = Encodings::new(list, texts, tokenization);
        Ok(EncodedWindows { encodings, places })
    }

    /// Tokenizes prompts that `write` makes of a request's texts, which have `size` bytes. Also returns what it found.
    pub async fn encode_prompts<T: Send + 'static>(
        &self,
        size: usize,
        write: impl FnOnce(&Tokenizer) -> Result<(Vec<Encoding>, T)> + Send + 'static,
    ) -> Result<(Encodings, T)> {
        check_size(size, MAX_BYTES)?;
        let (tokenizer, started) = (Arc::clone(self.tokenizer), Instant::now());
        let (list, found) = tokenize(size, self.deadline, move || write(&tokenizer)).await?;
        let texts = vec![None; list.len()];
        Ok((Encodings::new(list, texts, started.elapsed()), found))
    }

    /// Tokenizes a text whose parts end at `ends`, in bytes. Also returns each part's tokens.
    pub async fn encode_parts(
        &self,
        text: String,
        ends: Vec<usize>,
    ) -> Result<(Encodings, Vec<Range<usize>>)> {
        let (limit, keeps_text) = (self.limit, self.keeps_text);
        let (tokenizer, size, started) = (Arc::clone(self.tokenizer), text.len(), Instant::now());
        let work = move || {
            let (encoding, parts) = tokenizer.encode_parts(&text, &ends, limit)?;
            Ok((encoding, keeps_text.then_some(text), parts))
        };
        let (encoding, text, parts) = tokenize(size, self.deadline, work).await?;
        let encodings = Encodings::new(vec![encoding], vec![text], started.elapsed());
        Ok((encodings, parts))
    }
}

/// Refuses inputs with more than `max` bytes in total.
pub fn check_size(found: usize, max: usize) -> Result<()> {
    if found > max {
        return Err(Error::too_large(format!(
            "expected at most {max} bytes of text in all inputs, but found {found}"
        ))
        .with_hint("send fewer or shorter texts"));
    }
    Ok(())
}

/// The size of a request's inputs.
#[derive(Clone, Copy, Debug)]
struct InputSizes {
    /// All inputs' bytes.
    bytes: usize,
    inputs_per_text: usize,
}

/// Applies `encode` to each input, and measures the time. Errors name the text.
async fn tokenize_each<I: Send + 'static, T: Send + 'static>(
    inputs: Vec<I>,
    sizes: InputSizes,
    deadline: Deadline,
    encode: impl Fn(I) -> Result<T> + Send + 'static,
) -> Result<(Vec<T>, Duration)> {
    let work = move || {
        let InputSizes {
            inputs_per_text, ..
        } = sizes;
        let count = inputs.len() / inputs_per_text;
        let encode = |(index, input): (usize, I)| {
            if deadline.has_passed() {
                return Err(deadline.exceeded());
            }
            encode(input).map_err(|error| at_text(error, index / inputs_per_text, count))
        };
        inputs
            .into_iter()
            .enumerate()
            .map(encode)
            .collect::<Result<Vec<_>>>()
    };
    let started = Instant::now();
    Ok((
        tokenize(sizes.bytes, deadline, work).await?,
        started.elapsed(),
    ))
}
