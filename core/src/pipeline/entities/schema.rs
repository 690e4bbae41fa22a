//! Schemas in front of a text, as the package `gliner2` writes them: a name, and labels behind it.

use kivu_base::{Error, Result, error::quoted};
use kivu_text as tokenizer;
use kivu_text::{Tokenizer, WordForm, WordPrompt};

/// The token in front of a schema's name.
pub const SCHEMA: &str = "[P]";
/// The token before each entity label.
pub const ENTITY: &str = "[E]";
/// The token before each field of a structure.
pub const FIELD: &str = "[C]";
/// The token before each end of a relation.
pub const RELATION_END: &str = "[R]";
/// The token before each label of a classification.
pub const LABEL: &str = "[L]";
/// The token between schemas.
pub const SCHEMA_SEPARATOR: &str = "[SEP_STRUCT]";
/// The token between the schemas and the text.
pub const SEPARATOR: &str = "[SEP_TEXT]";
/// The token before a label's description.
pub const DESCRIPTION: &str = "[DESCRIPTION]";
/// The tokens before an example, and before its label.
pub const EXAMPLE: [&str; 2] = ["[EXAMPLE]", "[OUTPUT]"];

/// The schema of entities.
pub const ENTITIES: &str = "entities";
/// The schema of a classification whose request has no name for it.
pub const CLASSIFICATION: &str = "classification";

/// A schema.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a> {
    /// The token in front of the name.
    pub token: &'a str,
    /// The schema's name, such as [`ENTITIES`].
    pub name: &'a str,
    /// The token before each label.
    pub label_token: &'a str,
    /// The labels, in the order of the prompt.
    pub labels: &'a [String],
    /// The token between the schema and the text.
    pub separator: &'a str,
}

impl Schema<'_> {
    /// The schema's tokens, for texts with at most `max_tokens` tokens, which include them.
    pub fn prompt(&self, tokenizer: &Tokenizer, max_tokens: usize) -> Result<WordPrompt> {
        let Self {
            token,
            name,
            label_token,
            labels,
            separator,
        } = *self;
        let size = labels.iter().map(String::len).sum::<usize>() + name.len();
        if size > tokenizer::reach(max_tokens) {
            return Err(Error::too_large(format!(
                "the labels have {size} bytes, but the model takes at most {max_tokens} tokens"
            ))
            .with_hint("send fewer or shorter labels"));
        }
        let own = [token, label_token, separator];
        let parts = PartWriter::new(tokenizer, &own)?;
        let mut ids = Vec::new();
        parts.write([token, name, label_token], labels, &mut ids)?;
        ids.extend(tokenizer.ids(separator)?);
        Ok(WordPrompt {
            ids,
            words: Vec::new(),
            max_words: max_tokens,
            form: WordForm::Gliner2,
            finds_words: true,
        })
    }
}

/// Writes a schema's parts, in which the model finds names and labels by the tokens in front of them.
pub struct PartWriter<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens that names and labels must not contain.
    own: &'a [&'a str],
    reserved: Vec<u32>,
    opening: Vec<u32>,
    closing: Vec<u32>,
}

impl<'a> PartWriter<'a> {
    /// A writer for a model that reads these tokens as its own.
    pub fn new(tokenizer: &'a Tokenizer, own: &'a [&'a str]) -> Result<Self> {
        Ok(Self {
            tokenizer,
            own,
            reserved: own.iter().filter_map(|token| tokenizer.id(token)).collect(),
            opening: tokenizer.ids("(")?,
            closing: tokenizer.ids(")")?,
        })
    }

    /// Appends a part: its name after `token`, and each label after `label_token`.
    pub fn write(
        &self,
        [token, name, label_token]: [&str; 3],
        labels: &[String],
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        ids.extend(&self.opening);
        ids.extend(self.tokenizer.ids(token)?);
        ids.extend(self.checked("name", name)?);
        ids.extend(&self.opening);
        let marker = self.tokenizer.ids(label_token)?;
        for label in labels {
            ids.extend(marker.iter().chain(&self.checked("label", label)?));
        }
        ids.extend(self.closing.iter().chain(&self.closing));
        Ok(())
    }

    /// A text's tokens; errors call it `what`.
    pub fn checked(&self, what: &str, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.ids(text)?;
        let shown = text.escape_default();
        if ids.is_empty() {
            return Err(Error::invalid(format!(
                "the {what} `{shown}` has no tokens"
            )));
        }
        match ids.iter().any(|id| self.reserved.contains(id)) {
            false => Ok(ids),
            true => Err(Error::invalid(format!(
                "the {what} `{shown}` contains one of {}, which the model reads as its own",
                quoted(self.own)
            ))
            .with_hint("rename it")),
        }
    }
}
