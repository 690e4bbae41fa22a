//! `kivu redact` and `kivu restore`: personal data in a file, and back.

use std::{
    fs::{self, Permissions},
    io::{self, BufRead, BufReader, Write},
    mem::ManuallyDrop,
    ops::Range,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
};

use clap::Args;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use super::batch::{STANDARD, listed, model_threads, require_options_of};
use crate::{
    choices::choice,
    examples::examples,
    interrupt::{Ended, interruptible},
    library::resolve::{BuildArguments, open},
    services::Services,
    terminal::{print, print_aside},
};
use kivu::{
    Deadline, Error, Result,
    cloud::Cloud,
    config::{Config, list_text},
    locked,
    model::{Model, Pipeline},
    pipeline::{
        entities::TextEntities,
        redaction::{
            Key, Redaction,
            patterns::Patterns,
            placeholders::{Mapping, NumberScope, Replacement, Style, placeholders, restore},
        },
    },
    regular_file,
    repository::s3::Url,
    task::{JobOptions, entities::EntityFinder},
};
use kivu_jobs::{
    Parameters, Parquet,
    input::format::NamedForm,
    output::files::{digest, rename_new},
    rewrite::{Replace, entity_finder, rewrite, rewrite_text},
};

/// What the name of a file ends in until it is complete.
const PARTIAL: &str = ".kivu-partial";
/// Files that are not complete; a signal removes them.
static PARTIALS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Permissions of a file, which the user's mask restricts.
const SHARED: u32 = 0o666;
/// Permissions of a secret.
const SECRET: u32 = 0o600;
/// Windows of a long text share at most this many tokens, or words with a model that takes labels.
const MAX_STRIDE: usize = 128;

/// The files of both commands.
#[derive(Clone, Debug, Args)]
struct Files {
    /// A file: CSV, JSON Lines or Parquet by its name, and text otherwise
    input: PathBuf,
    /// A new file
    output: PathBuf,
    /// Columns with texts, separated by commas [default: those of the mapping, else `text` or another common name]
    #[arg(long, value_name = "COLUMNS", alias = "column")]
    columns: Vec<String>,
}

/// Replace personal data in a file: numbers with check digits, addresses and keys, and what a model finds
///
/// The columns keep their names, and no originals. Patterns find only what has a written form: names need a model.
#[derive(Clone, Debug, Args)]
#[command(after_help = examples("redact"))]
pub struct Arguments {
    #[command(flatten)]
    files: Files,
    /// A model that finds entities, in kivu.toml or a name as in `kivu serve` [default: none]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What a model that takes labels finds, separated by commas
    #[arg(long, value_name = "LABELS", requires = "model")]
    labels: Vec<String>,
    /// Patterns, separated by commas, or `all`
    #[arg(long, value_name = "PATTERNS", default_value = "all")]
    patterns: Vec<String>,
    /// What replacements have besides labels; `hash` and `encrypt` need the key in KIVU_REDACT_KEY
    #[arg(long, value_parser = choice::<Style>(), default_value = "label")]
    style: Style,
    /// A new file for the originals of `number` and `hash`, which only its owner can read
    #[arg(long, value_name = "FILE")]
    mapping: Option<PathBuf>,
    #[command(flatten)]
    pub build: BuildArguments,
}

/// Put the originals back into a file that `kivu redact` wrote, or a text with its placeholders
///
/// Placeholders that are unknown stay, and are counted.
#[derive(Debug, Args)]
#[command(after_help = examples("restore"))]
pub struct RestoreArguments {
    #[command(flatten)]
    files: Files,
    /// The file with the originals [default: none; encrypted ones need the key in KIVU_REDACT_KEY]
    #[arg(long, value_name = "FILE")]
    mapping: Option<PathBuf>,
    /// INPUT is a text with placeholders of the mapping's file; with a name, REDACTED is checked to be this file
    #[arg(
        long,
        value_name = "REDACTED",
        num_args = 0..=1,
        require_equals = true,
        requires = "mapping"
    )]
    edited: Option<Option<PathBuf>>,
}

/// The originals of a file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct MappingFile {
    /// BLAKE3 of the redacted file.
    file: String,
    /// Its name when it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The columns that were named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns: Vec<String>,
    placeholders: Mapping,
}

pub fn run(arguments: Arguments, config: Config, services: Services) -> Result<ExitCode> {
    interruptible(move || redact(&arguments, config, &services)).map(code)
}

pub fn run_restore(
    arguments: RestoreArguments,
    config: Config,
    parquet: Parquet,
) -> Result<ExitCode> {
    interruptible(move || restore_file(&arguments, &config, parquet)).map(code)
}

/// The exit code, after the removal of what a signal interrupts.
fn code(ended: Ended<ExitCode>) -> ExitCode {
    if matches!(ended, Ended::Signalled(_)) {
        // The command's thread goes on until the process ends, and waits here.
        let partials = ManuallyDrop::new(locked(&PARTIALS));
        partials
            .iter()
            .for_each(|partial| drop(fs::remove_file(partial)));
    }
    ended.code()
}

fn redact(arguments: &Arguments, mut config: Config, services: &Services) -> Result<ExitCode> {
    let Arguments {
        files,
        style,
        mapping,
        ..
    } = arguments;
    let needs_key = matches!(style, Style::Hash | Style::Encrypt);
    let key = match &config.redact_key {
        Some(key) if needs_key => Some(Key::from_hex(&key.0)?),
        _ => None,
    };
    if mapping.is_some() && !matches!(style, Style::Number | Style::Hash) {
        return Err(Error::config(
            "`--mapping` has no effect without the style `number` or `hash`",
        ));
    }
    let patterns = listed("--patterns", &arguments.patterns)?;
    if patterns.is_empty() && arguments.model.is_none() {
        return Err(
            Error::config("nothing would be replaced: there is no pattern and no model")
                .with_hint("set `--patterns` or `--model`"),
        );
    }
    let redaction = Redaction {
        patterns: Patterns::new(&patterns)?,
        replacement: Some(Replacement::new(*style, key)?),
        scope: NumberScope::Request,
        known: Mapping::default(),
    };
    let secret = mapping.as_ref().map(|path| NewFile::create(path, SECRET));
    let secret = secret.transpose()?;
    let finder = finder(arguments, &mut config, &services.cloud)?;
    let mut count = 0;
    let mut redactor = redaction.begin()?.without_limit();
    let mut replaced = |found: TextEntities| {
        count += found.entities().len();
        match found {
            TextEntities::Redacted { text, .. } => Ok(text),
            TextEntities::Entities(_) => Err(Error::model(
                "expected a text with replacements, but found entities alone",
            )),
        }
    };
    let (file, notes) = files.rewritten(services.parquet, &mut |texts| match &finder {
        Some((finder, runtime)) if !texts.is_empty() => {
            let found = finder.run_with(texts, &mut redactor, Deadline::none());
            let found = runtime.block_on(found)?;
            found.texts.into_iter().map(&mut replaced).collect()
        }
        _ => texts
            .iter()
            .map(|text| redactor.text(text, &[], Vec::new()).and_then(&mut replaced))
            .collect(),
    })?;
    if let Some(mut secret) = secret {
        let contents = MappingFile {
            file: digest(file.partial.path())?,
            name: name(&files.output),
            columns: listed("--columns", &files.columns)?,
            placeholders: redactor.mapping().clone(),
        };
        let contents = serde_json::to_string(&contents)
            .map_err(|_| Error::config("cannot write the mapping as JSON"))?;
        secret.write(contents.as_bytes())?;
        secret.sync()?;
        NewFile::keep(&[secret, file])?;
    } else {
        NewFile::keep(&[file])?;
    }
    let found = if finder.is_some() {
        "entities and matches"
    } else {
        "matches"
    };
    print(&format!(
        "replaced {count} {found} in {}",
        files.output.display()
    ))?;
    notes.iter().for_each(|note| print_aside(note));
    if mapping.is_none() && matches!(style, Style::Number | Style::Hash) {
        print_aside("note: without `--mapping`, the originals cannot be restored");
    }
    Ok(ExitCode::SUCCESS)
}

/// The model, with parameters that read texts of any length, and the runtime that waits for it.
fn finder(
    arguments: &Arguments,
    config: &mut Config,
    cloud: &Cloud,
) -> Result<Option<(EntityFinder, Runtime)>> {
    let Some(name) = &arguments.model else {
        return Ok(None);
    };
    let build = arguments.build.clone().options(config);
    let model = open(Some(name), &build, config, cloud)?;
    let mut options = JobOptions::default();
    let labels = list_text(&listed("--labels", &arguments.labels)?);
    let stride = stride(&model).map(|stride| stride.to_string());
    for (name, value) in [
        ("redact", Some("true".to_owned())),
        ("labels", Some(labels).filter(|labels| !labels.is_empty())),
        ("stride", stride),
    ] {
        if let Some(Err(expected)) = value.and_then(|value| options.set(name, &value)) {
            return Err(Error::config(format!("expected {expected} in `--{name}`")));
        }
    }
    let parameters = Parameters {
        options,
        ..Parameters::default()
    };
    let finder = entity_finder(&model, &parameters)?;
    require_options_of(&model, &parameters)?;
    Ok(Some((finder, model_threads(config)?)))
}

/// Tokens that neighbouring windows of a long text share; `None` if the model reads texts of any length.
fn stride(model: &Model) -> Option<usize> {
    let length = match &model.pipeline {
        Pipeline::TokenClassification(pipeline) if pipeline.divides_texts() => return None,
        Pipeline::TokenClassification(pipeline) => pipeline.settings().max_tokens,
        Pipeline::ZeroShotEntities(pipeline) => pipeline.settings().max_words,
        _ => return None,
    };
    Some((length / 4).min(MAX_STRIDE))
}

fn restore_file(
    arguments: &RestoreArguments,
    config: &Config,
    parquet: Parquet,
) -> Result<ExitCode> {
    let RestoreArguments {
        files,
        mapping,
        edited,
    } = arguments;
    let key = config.redact_key.as_ref().map(|key| Key::from_hex(&key.0));
    let key = key.transpose()?;
    let mut files = files.clone();
    let (mapping, source) = match mapping {
        Some(path) => {
            let found = read_mapping(path, arguments)?;
            if files.columns.is_empty() && edited.is_none() {
                files.columns = vec![list_text(&found.columns)];
                files.columns.retain(|columns| !columns.is_empty());
            }
            (found.placeholders, found.name.filter(|_| edited.is_some()))
        }
        None if key.is_none() => {
            return Err(
                Error::config("expected `--mapping` or a key, but found neither")
                    .with_hint("set KIVU_REDACT_KEY for encrypted originals"),
            );
        }
        None => (Mapping::default(), None),
    };
    let (mut restored, mut unknown) = (0, 0);
    let mut replace = |text: String| {
        let found = restore(&text, &mapping, key.as_ref(), usize::MAX)?;
        restored += found.restored;
        unknown += found.unknown;
        Ok(found.text)
    };
    let (file, notes) = files.rewritten(parquet, &mut |texts| {
        texts.into_iter().map(&mut replace).collect()
    })?;
    // Nothing else shows that the key or the mapping is another one.
    if restored == 0 && unknown > 0 {
        return Err(Error::config(format!(
            "none of the placeholders in `{}` is known",
            files.input.display()
        ))
        .with_hint("use the key that they were made with, or their mapping"));
    }
    let elsewhere = match mapping.is_empty() && files.columns.is_empty() {
        true => file.sealed_placeholders()?.saturating_sub(unknown),
        false => 0,
    };
    NewFile::keep(&[file])?;
    let of = source.map_or_else(String::new, |name| format!(" of `{name}`"));
    print(&format!(
        "restored {restored} placeholders{of} in {}; {unknown} are unknown",
        files.output.display()
    ))?;
    notes.iter().for_each(|note| print_aside(note));
    if elsewhere > 0 {
        print_aside(&format!(
            "note: other columns have {elsewhere} placeholders; name all columns with `--columns`"
        ));
    } else if restored == 0 {
        print_aside("note: the input has no placeholders");
    } else if matches!(edited, Some(None)) {
        print_aside(
            "note: set `--edited=REDACTED` to check that the mapping is the one of this redacted file",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of a file, without its folder.
fn name(path: &Path) -> Option<String> {
    let name = path.file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// Reads a mapping, and checks that it is the one of the input, or of the redacted file that was edited.
fn read_mapping(path: &Path, arguments: &RestoreArguments) -> Result<MappingFile> {
    let text = regular_file::read_to_string(path).map_err(Error::cannot("read", path.display()))?;
    // The parser's message may contain an original.
    let found: MappingFile = serde_json::from_str(&text).map_err(|_| {
        Error::config(format!(
            "`{}` is not a mapping of `kivu redact`",
            path.display()
        ))
    })?;
    let redacted = match &arguments.edited {
        None => &arguments.files.input,
        Some(Some(redacted)) => redacted,
        Some(None) => return Ok(found),
    };
    if found.file == digest(redacted)? {
        return Ok(found);
    }
    let other = match found.name {
        Some(name) => format!("another file, `{name}` when it was written,"),
        None => "another file".to_owned(),
    };
    let error = Error::config(format!(
        "`{}` is the mapping of {other} than `{}`",
        path.display(),
        redacted.display()
    ));
    Err(match arguments.edited {
        Some(_) => error,
        None => error
            .with_hint("set `--edited=REDACTED` for a text with placeholders of a redacted file"),
    })
}

impl Files {
    /// The output with other texts in the input's columns, or in all of an input that has none; and notes about it.
    fn rewritten(
        &self,
        parquet: Parquet,
        replace: &mut Replace<'_>,
    ) -> Result<(NewFile, Vec<String>)> {
        let Self { input, output, .. } = self;
        let columns = listed("--columns", &self.columns)?;
        require_local(input)?;
        require_same_form(input, output)?;
        let mut output = NewFile::create(output, SHARED)?;
        let named = NamedForm::of(&input.to_string_lossy());
        let found = match named.format.is_some() || named.compression.is_some() {
            false if columns.is_empty() => {
                regular_file::open(input).map_err(Error::cannot("read", input.display()))?;
                rewrite_text(input, output.partial.as_file_mut(), replace)?
            }
            _ => rewrite(
                input,
                &columns,
                output.partial.as_file_mut(),
                parquet,
                replace,
            )
            .map_err(without_options)?,
        };
        let missing = found.missing.iter().map(|(name, count)| {
            let (rows, were) = match count {
                1 => ("1 row has".to_owned(), "was"),
                _ => (format!("{count} rows have"), "were"),
            };
            format!("note: {rows} no field `{name}`, and {were} copied without it")
        });
        let mut notes: Vec<_> = missing.collect();
        if found.is_changed {
            notes.push("note: the input was changed while it was read".to_owned());
        }
        output.sync()?;
        Ok((output, notes))
    }
}

/// The error without a hint at options of jobs, which these commands lack.
fn without_options(error: Error) -> Error {
    let names_option = |hint: &str| hint.contains("`--") && !hint.contains("`--column");
    match error.hint().is_some_and(|hint| names_option(&hint)) {
        true => Error::invalid(error.problem()).with_hint(
            "name the file by its format, such as `a.txt`, or write its rows as JSON Lines",
        ),
        false => error,
    }
}

/// Refuses a URL, which may have a password.
fn require_local(path: &Path) -> Result<()> {
    match Url::of_location(path)? {
        Some(url) => Err(Error::config(format!(
            "`{url}` is an object, but personal data is replaced in local files"
        ))
        .with_hint("download it, or use `kivu batch` with `--redact`")),
        None => Ok(()),
    }
}

/// Refuses an output whose name is another format's than the input's, or a compressed file's: neither is written.
fn require_same_form(input: &Path, output: &Path) -> Result<()> {
    let [from, to] = [input, output].map(|path| NamedForm::of(&path.to_string_lossy()));
    let found = match (to.format, to.compression) {
        (_, Some(_)) => "a compressed file".to_owned(),
        (Some(format), None) if from.format.is_some_and(|from| from != format) => {
            format.to_string()
        }
        _ => return Ok(()),
    };
    Err(Error::config(format!(
        "the output has the input's format, but its name is one for {found}"
    ))
    .with_hint("rename the output"))
}

/// A new file, which has another name until it is complete, and is removed unless it is kept.
struct NewFile {
    path: PathBuf,
    partial: NamedTempFile,
}

impl NewFile {
    fn create(path: &Path, mode: u32) -> Result<Self> {
        require_local(path)?;
        let Some(name) = name(path).filter(|name| name != STANDARD) else {
            return Err(Error::config(format!(
                "`{}` is not a name for a new file",
                path.display()
            )));
        };
        let failed = || Error::cannot("create", path.display());
        if fs::symlink_metadata(path).is_ok() {
            return Err(failed()(io::ErrorKind::AlreadyExists.into()));
        }
        let mut partials = locked(&PARTIALS);
        let partial = tempfile::Builder::new()
            .prefix(&name)
            .suffix(PARTIAL)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(path.parent().unwrap_or(Path::new("")))
            .map_err(failed())?;
        partials.push(partial.path().to_owned());
        Ok(Self {
            path: path.to_owned(),
            partial,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.partial.write_all(bytes);
        written.map_err(Error::cannot("write", self.path.display()))
    }

    fn sync(&self) -> Result<()> {
        let synced = self.partial.as_file().sync_all();
        synced.map_err(Error::cannot("write", self.path.display()))
    }

    /// The number of placeholders in the file that are encrypted originals.
    fn sealed_placeholders(&self) -> Result<usize> {
        let failed = || Error::cannot("read", self.path.display());
        let file = self.partial.reopen().map_err(failed())?;
        let mut count = 0;
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(failed())?;
            let line = String::from_utf8_lossy(&line);
            let is_sealed = |place: &Range<usize>| line[place.clone()].contains(':');
            count += placeholders(&line).filter(is_sealed).count();
        }
        Ok(count)
    }

    /// Gives files their names, unless others have got one of them since.
    fn keep(files: &[Self]) -> Result<()> {
        // A signal removes all or none.
        let mut partials = locked(&PARTIALS);
        for (count, file) in files.iter().enumerate() {
            if let Err(error) = rename_new(file.partial.path(), &file.path) {
                files[..count]
                    .iter()
                    .for_each(|kept| drop(fs::remove_file(&kept.path)));
                return Err(Error::cannot("create", file.path.display())(error));
            }
            partials.retain(|partial| partial != file.partial.path());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kivu::{config::Secret, pipeline::redaction::placeholders::Memory};
    use kivu_jobs::input::compression::Compression;

    use super::*;

    fn arguments(folder: &Path, from: &str, to: &str, style: Style) -> Arguments {
        let has_mapping = matches!(style, Style::Number | Style::Hash);
        Arguments {
            files: files(folder, from, to),
            model: None,
            labels: Vec::new(),
            patterns: vec!["all".into()],
            style,
            mapping: has_mapping.then(|| folder.join(format!("{to}.secret"))),
            build: BuildArguments::default(),
        }
    }

    fn files(folder: &Path, from: &str, to: &str) -> Files {
        Files {
            input: folder.join(from),
            output: folder.join(to),
            columns: Vec::new(),
        }
    }

    fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
        redact(arguments, config.clone(), &Services::default())
    }

    fn run_restore(arguments: &RestoreArguments, config: &Config) -> Result<ExitCode> {
        restore_file(arguments, config, Parquet::default())
    }

    #[test]
    fn files_are_restored_byte_by_byte() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let config = Config {
            redact_key: Some(Secret("0f".repeat(32))),
            ..Config::default()
        };
        let cases = [
            (
                "a.csv",
                "id,text\r\n1,\"a@b.org, \"\"c\"\"\"\r\n2,\r\n3,no [PER_1] b@b.org\r\n4,\"a@b.org\"",
            ),
            (
                "a.jsonl",
                "{\"id\": 1, \"text\": \"a@b.org é\", \"x\": [1]}\n{\"text\": null}\n{\"id\": 2}\n",
            ),
            (
                "b.jsonl",
                "{\"text\": \"caf\\u00e9 \\/\"}\n{\"text\": \"a@b.org\"}\n",
            ),
            ("b.csv", "text\n\n\na@b.org\n\n"),
            ("a.txt", "Call +44 20 7946 0958\r\nor a@b.org.\n"),
        ];
        for (name, text) in cases {
            fs::write(at(name), text).unwrap();
            for style in [Style::Number, Style::Hash, Style::Encrypt] {
                let redacted = format!("{style:?}-{name}");
                let given = arguments(folder.path(), name, &redacted, style);
                run(&given, &config).unwrap();
                let shared = fs::read_to_string(at(&redacted)).unwrap();
                assert!(!shared.contains("@b.org"), "{shared}");
                if let Some(mapping) = &given.mapping {
                    let mode = fs::metadata(mapping).unwrap().permissions().mode();
                    assert_eq!(mode & 0o777, SECRET);
                }
                let restored = RestoreArguments {
                    files: files(folder.path(), &redacted, &format!("back-{redacted}")),
                    mapping: given.mapping,
                    edited: None,
                };
                run_restore(&restored, &config).unwrap();
                assert_eq!(fs::read_to_string(restored.files.output).unwrap(), text);
            }
        }
        let shared = fs::read_to_string(at("Number-a.csv")).unwrap();
        insta::assert_snapshot!(shared, @r#"
        id,text
        1,"[EMAIL_ADDRESS_1], ""c"""
        2,
        3,no [PLACEHOLDER_1] [EMAIL_ADDRESS_2]
        4,"[EMAIL_ADDRESS_1]"
        "#);
    }

    #[test]
    fn rows_without_a_column_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(
            &path,
            "{\"text\": \"a@b.org\"}\n{\"txet\": \"c@b.org\"}\n{\"text\": null}\n",
        )
        .unwrap();
        let files = files(folder.path(), "a.jsonl", "b.jsonl");
        let mut same = |texts: Vec<String>| Ok(texts);
        let (_, notes) = files.rewritten(Parquet::default(), &mut same).unwrap();
        assert_eq!(
            notes,
            ["note: 1 row has no field `text`, and was copied without it"]
        );
    }

    #[test]
    fn a_mapping_knows_its_columns() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let table = "text,a note\nc@b.org,d@b.org\n";
        fs::write(at("a.csv"), table).unwrap();
        let mut given = arguments(folder.path(), "a.csv", "b.csv", Style::Number);
        given.files.columns = vec!["text,a note".into()];
        run(&given, &Config::default()).unwrap();
        let restored = RestoreArguments {
            files: files(folder.path(), "b.csv", "c.csv"),
            mapping: given.mapping,
            edited: None,
        };
        run_restore(&restored, &Config::default()).unwrap();
        assert_eq!(fs::read_to_string(at("c.csv")).unwrap(), table);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn placeholders_in_other_columns_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = NewFile::create(&folder.path().join("a.csv"), SHARED).unwrap();
        let sealed = Key::from_hex(&"0f".repeat(32)).map(Replacement::Encrypt);
        let sealed = Memory::default().placeholder(&sealed.unwrap(), "PER", "Ann");
        let row = format!("text,note\n[PER_1],{}\n", sealed.unwrap());
        file.write(row.repeat(3).as_bytes()).unwrap();
        assert_eq!(file.sealed_placeholders().unwrap(), 3);
    }

    #[test]
    fn standard_output_is_no_new_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "a@b.org").unwrap();
        let given = arguments(folder.path(), "a.txt", "-", Style::Label);
        let error = run(&given, &Config::default()).unwrap_err().to_string();
        assert!(error.ends_with("` is not a name for a new file"), "{error}");
    }

    #[test]
    fn a_packed_text_is_one_text() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut packer = Compression::Gzip.pack().unwrap();
        packer
            .append(|output| output.write_all(b"Call a@b.org\r\nor b@b.org."))
            .unwrap();
        fs::write(at("a.txt.gz"), packer.finish().unwrap()).unwrap();
        let given = arguments(folder.path(), "a.txt.gz", "b.txt", Style::Label);
        run(&given, &Config::default()).unwrap();
        let text = fs::read_to_string(at("b.txt")).unwrap();
        assert_eq!(text, "Call [EMAIL_ADDRESS]\r\nor [EMAIL_ADDRESS].");
    }

    /// Responses have a limit of matches, and jobs options for CSV.
    #[test]
    fn files_are_no_requests_and_no_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.txt"), "a@b.org\n".repeat(100_001)).unwrap();
        let mut given = arguments(folder.path(), "a.txt", "b.txt", Style::Label);
        given.patterns = vec!["EMAIL_ADDRESS".into()];
        run(&given, &Config::default()).unwrap();
        let text = fs::read_to_string(at("b.txt")).unwrap();
        assert_eq!(text, "[EMAIL_ADDRESS]\n".repeat(100_001));
        for (table, problem) in [
            (
                "id\ttext\n1\t\"a@b.org\tx\ny\"\n",
                "the row that begins in line 2 has a field with tabs and a line end within quotes, which may be part of several rows' texts instead",
            ),
            (
                "id\ttext\n1\t\"a@b.org\" x\n",
                "in row 1: expected tabs or the row's end after the quote that closes field 2, but found more text",
            ),
        ] {
            fs::write(at("a.tsv"), table).unwrap();
            let given = arguments(folder.path(), "a.tsv", "b.tsv", Style::Label);
            let error = run(&given, &Config::default()).unwrap_err().to_string();
            let hint =
                "name the file by its format, such as `a.txt`, or write its rows as JSON Lines";
            assert_eq!(error, format!("{problem}; {hint}"));
        }
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let shown = |error: Error| {
            error
                .to_string()
                .replace(&folder.path().display().to_string(), "[folder]")
        };
        let config = Config::default();
        fs::write(at("a.txt"), "a@b.org").unwrap();
        fs::write(at("a.csv"), "text\na@b.org\n").unwrap();
        fs::write(at("bad.csv"), "id,text\n1,a@b.org\n2\n").unwrap();
        let refused = |from: &str, style| {
            let given = arguments(folder.path(), from, "new", style);
            let error = shown(run(&given, &config).unwrap_err());
            assert!(!at("new").exists());
            error
        };
        insta::assert_snapshot!(refused("a.txt", Style::Encrypt), @"the styles `hash` and `encrypt` need a key, but there is none; make one with `openssl rand -hex 32`");
        insta::assert_snapshot!(refused("bad.csv", Style::Number), @"in row 2: expected 2 fields, but found 1");
        for (from, to, kind) in [
            ("a.csv", "new.jsonl", "JSON Lines"),
            ("a.csv.gz", "new.csv.gz", "a compressed file"),
        ] {
            let given = arguments(folder.path(), from, to, Style::Label);
            let error = shown(run(&given, &config).unwrap_err());
            assert_eq!(
                error,
                format!(
                    "the output has the input's format, but its name is one for {kind}; rename the output"
                )
            );
            assert!(!at(to).exists());
        }
        run(
            &arguments(folder.path(), "a.csv", "b.csv", Style::Number),
            &config,
        )
        .unwrap();
        run(
            &arguments(folder.path(), "a.txt", "b.txt", Style::Number),
            &config,
        )
        .unwrap();
        let again = run(
            &arguments(folder.path(), "a.txt", "b.txt", Style::Label),
            &config,
        );
        assert!(shown(again.unwrap_err()).starts_with("cannot create `[folder]/b.txt`"));
        let mut twice = arguments(folder.path(), "a.txt", "new", Style::Number);
        twice.mapping = Some(at("new"));
        let error = shown(run(&twice, &config).unwrap_err());
        assert!(error.starts_with("cannot create `[folder]/new`"), "{error}");
        assert!(!at("new").exists());
        let mut nothing = arguments(folder.path(), "a.txt", "new", Style::Label);
        nothing.patterns = vec![String::new()];
        let error = shown(run(&nothing, &config).unwrap_err());
        insta::assert_snapshot!(error, @"nothing would be replaced: there is no pattern and no model; set `--patterns` or `--model`");
        let mut restored = RestoreArguments {
            files: files(folder.path(), "b.csv", "back"),
            mapping: Some(at("b.txt.secret")),
            edited: None,
        };
        let error = shown(run_restore(&restored, &config).unwrap_err());
        insta::assert_snapshot!(error, @"`[folder]/b.txt.secret` is the mapping of another file, `b.txt` when it was written, than `[folder]/b.csv`; set `--edited=REDACTED` for a text with placeholders of a redacted file");
        fs::write(
            at("answer.txt"),
            "Write to [EMAIL_ADDRESS_1], not [EMAIL_ADDRESS_2].",
        )
        .unwrap();
        restored.files.input = at("answer.txt");
        restored.edited = Some(Some(at("b.csv")));
        let error = shown(run_restore(&restored, &config).unwrap_err());
        insta::assert_snapshot!(error, @"`[folder]/b.txt.secret` is the mapping of another file, `b.txt` when it was written, than `[folder]/b.csv`");
        assert!(!at("back").exists());
        for (number, edited) in [None, Some(at("b.txt"))].into_iter().enumerate() {
            restored.edited = Some(edited);
            restored.files.output = at(&format!("back{number}"));
            run_restore(&restored, &config).unwrap();
            let text = fs::read_to_string(&restored.files.output).unwrap();
            assert_eq!(text, "Write to a@b.org, not [EMAIL_ADDRESS_2].");
        }
        fs::write(at("answer.txt"), "Write to [PERSON_1].").unwrap();
        restored.files.output = at("back");
        let error = shown(run_restore(&restored, &config).unwrap_err());
        insta::assert_snapshot!(error, @"none of the placeholders in `[folder]/answer.txt` is known; use the key that they were made with, or their mapping");
        assert!(!at("back").exists());
        let [config, other] = ["0f", "1e"].map(|digits| Config {
            redact_key: Some(Secret(digits.repeat(32))),
            ..Config::default()
        });
        run(
            &arguments(folder.path(), "a.txt", "e.txt", Style::Encrypt),
            &config,
        )
        .unwrap();
        let restored = RestoreArguments {
            files: files(folder.path(), "e.txt", "by-another-key"),
            mapping: None,
            edited: None,
        };
        let error = shown(run_restore(&restored, &other).unwrap_err());
        insta::assert_snapshot!(error, @"none of the placeholders in `[folder]/e.txt` is known; use the key that they were made with, or their mapping");
        assert!(!at("by-another-key").exists());
    }
}
