//! The model card: `README.md`, whose YAML front matter names a task and tags.

use std::path::Path;

use saphyr_parser::{Event, Parser};

use super::Plan;
use crate::files::io::read_if_exists;
use kivu::{Error, Result, pipeline::Task};

const FILE: &str = "README.md";
/// The line before and after the front matter.
const FENCE: &str = "---";
const TASK: &str = "pipeline_tag";
const TAGS: &str = "tags";
const BASES: &str = "base_model";

/// Fields in the front matter.
#[derive(Debug, Default, PartialEq, Eq)]
struct ModelCard {
    task: Option<String>,
    tags: Vec<String>,
    bases: Vec<String>,
}

/// The task that the model card's `pipeline_tag` names, if any.
pub fn pipeline_tag(folder: &Path) -> Option<Task> {
    let card = ModelCard::open(folder).unwrap_or_default();
    match card.task?.as_str() {
        "sentence-similarity" => Some(Task::FeatureExtraction),
        tag => tag.parse().ok(),
    }
}

/// Whether the model card lists one of these tags.
pub fn has_tag(folder: &Path, tags: &[&str]) -> bool {
    let card = ModelCard::open(folder).unwrap_or_default();
    card.tags.iter().any(|tag| tags.contains(&tag.as_str()))
}

/// Repositories that the model was made from, according to its card.
pub fn base_models(folder: &Path) -> Vec<String> {
    ModelCard::open(folder).unwrap_or_default().bases
}

/// Says which model card cannot be read, since its task and tags then have no effect.
pub fn warning(plan: &Plan) -> Option<String> {
    let mut folders = plan.adapter.iter().chain([&plan.folder]);
    let error = folders.find_map(|folder| ModelCard::open(folder).err())?;
    Some(format!(
        "the task and the tags in the model card are ignored: {}",
        error.chain()
    ))
}

impl ModelCard {
    /// Reads the card in `folder`; empty without front matter.
    fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let unreadable = |problem: &str| {
            Error::model(format!(
                "cannot read the YAML in `{}`: {problem}",
                path.display()
            ))
        };
        let bytes = read_if_exists(&path)?.unwrap_or_default();
        if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
            return Err(unreadable("it is UTF-16").with_hint("save it as UTF-8"));
        }
        // As on the hub, a damaged character elsewhere does not hide the tags.
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let mut lines = text.lines().map(str::trim_end);
        if lines.next() != Some(FENCE) {
            return Ok(Self::default());
        }
        let mut yaml = String::new();
        loop {
            match lines.next() {
                Some(FENCE) => break,
                Some(line) => yaml.extend([line, "\n"]),
                None => return Err(unreadable("no line `---` ends it")),
            }
        }
        Self::parse(&yaml).map_err(|problem| unreadable(&problem))
    }

    /// Adds an element of the list that is called `key`, if it is one of the card's.
    fn push(&mut self, key: &str, text: String) {
        match key {
            TAGS => self.tags.push(text),
            BASES => self.bases.push(text),
            _ => {}
        }
    }

    /// Reads a mapping. Aliases are refused: expanding them could take any amount of memory.
    fn parse(yaml: &str) -> Result<Self, String> {
        let (mut card, mut depth, mut is_in_key) = (Self::default(), 0, false);
        let mut key: Option<String> = None;
        for event in Parser::new_from_str(yaml) {
            let (event, _) = event.map_err(|error| error.to_string())?;
            match event {
                Event::SequenceStart(..) if depth == 0 => {
                    return Err("it is a list instead of a mapping".to_owned());
                }
                Event::Scalar(text, ..) if depth == 0 && !text.is_empty() => {
                    return Err("it is a text instead of a mapping".to_owned());
                }
                Event::MappingStart(..) | Event::SequenceStart(..) => {
                    is_in_key |= depth == 1 && key.is_none();
                    depth += 1;
                }
                Event::MappingEnd | Event::SequenceEnd => {
                    depth -= 1;
                    if depth == 1 {
                        key = is_in_key.then(String::new);
                        is_in_key = false;
                    }
                }
                Event::Alias(_) => return Err("aliases are not supported".to_owned()),
                Event::Scalar(text, ..) if depth == 1 => match key.take().as_deref() {
                    None => key = Some(text.into_owned()),
                    Some(TASK) => card.task = Some(text.into_owned()),
                    Some(key) => card.push(key, text.into_owned()),
                },
                Event::Scalar(text, ..) if depth == 2 => {
                    card.push(key.as_deref().unwrap_or_default(), text.into_owned());
                }
                _ => {}
            }
        }
        Ok(card)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::model_folder::ModelFolder;

    fn opened(card: &[u8]) -> Result<ModelCard> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), card).unwrap();
        ModelCard::open(folder.path())
    }

    fn fields(matter: &str) -> (Option<String>, Vec<String>) {
        let card = format!("---\n{matter}\n---\ntags:\n- other\n");
        let card = opened(card.as_bytes()).unwrap();
        (card.task, card.tags)
    }

    #[test]
    fn cards_are_yaml() {
        let named = (
            Some("summarization".to_owned()),
            vec!["en".to_owned(), "splade".to_owned()],
        );
        for matter in [
            "pipeline_tag: summarization\ntags:\n- en\n- splade\nlicense: mit",
            "pipeline_tag: summarization  # the task\ntags:\n\n# of the model\n  - en\n\n  - splade # yes",
            "tags: [en, \"splade\"]\npipeline_tag: 'summarization'",
            "\"pipeline_tag\" : >-\n  summarization\n\"tags\": [\n  en, # language\n  splade]",
            "{pipeline_tag: summarization, tags: [en, splade], datasets: [{name: a, tags: [b]}]}",
            "? [a, b]\n: pipeline_tag\npipeline_tag: summarization\n? tags\n: - en\n  - splade",
            "model-index:\n- name: a\n  pipeline_tag: translation\n  tags: [c]\npipeline_tag: summarization\ntags: [en, splade]",
        ] {
            assert_eq!(fields(matter), named, "{matter}");
        }
        assert_eq!(fields("tags: splade"), (None, vec!["splade".to_owned()]));
        assert_eq!(fields("datasets:\n- splade"), (None, vec![]));
        assert_eq!(fields("# nothing"), (None, vec![]));
    }

    #[test]
    fn marks_line_ends_and_damaged_characters_hide_no_tag() {
        for card in [
            &b"\xef\xbb\xbf---\ntags:\n- splade\n---\n"[..],
            b"---\r\nauthor: caf\xe9\r\ntags:\r\n- splade\r\n---\r\n",
            b"\n\n---\ntags: [splade] # \xff\n--- \n",
        ] {
            assert_eq!(opened(card).unwrap().tags, ["splade"], "{card:?}");
        }
        for none in [
            &b"# A model\n---\ntags: [splade]\n---\n"[..],
            b"",
            b"tags: [splade]",
        ] {
            assert_eq!(opened(none).unwrap(), ModelCard::default());
        }
    }

    #[test]
    fn unreadable_cards_are_warned_about() {
        let of = |card: &[u8]| {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(FILE), card).unwrap();
            let plan = Plan {
                folder: ModelFolder::new(folder.path()),
                ..Plan::default()
            };
            let warning = warning(&plan).unwrap_or_default();
            warning.replace(&*folder.path().to_string_lossy(), "[folder]")
        };
        let warnings = [
            &b"---\npipeline_tag: [\n---\n"[..],
            b"---\npipeline_tag: summarization\n",
            b"---\n- splade\n---\n",
            b"---\nall: &all [a]\ntags: *all\n---\n",
            b"\xff\xfe-\0-\0-\0",
        ];
        let warnings = warnings.map(of).join("\n");
        let warnings =
            warnings.replace("the task and the tags in the model card are ignored: ", "");
        insta::assert_snapshot!(warnings, @"
        cannot read the YAML in `[folder]/README.md`: while parsing a node, did not find expected node content at byte 16 line 2 column 1
        cannot read the YAML in `[folder]/README.md`: no line `---` ends it
        cannot read the YAML in `[folder]/README.md`: it is a list instead of a mapping
        cannot read the YAML in `[folder]/README.md`: aliases are not supported
        cannot read the YAML in `[folder]/README.md`: it is UTF-16; save it as UTF-8
        ");
        assert_eq!(of(b"---\ntags: [a]\n---\n"), "");
    }
}
