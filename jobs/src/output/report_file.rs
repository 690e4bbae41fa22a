//! The job report's file or object, next to the output. Files that are not reports are not overwritten.

use std::{
    fs::{self, Metadata, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    files::lookup,
    report::{Report, Status},
};
use crate::input::location::{Existing, JobOutput};
use kivu::{
    Error, Result, regular_file,
    repository::s3::{Condition, Object, Store, Url, fit_key},
};

/// Suffix for report names.
pub const SUFFIX: &str = ".report.json";
/// Larger files are not Kivu's reports.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Attempts to write the report while other processes write it.
const TRIES: usize = 5;

/// Report path for the output `path`.
pub fn path_of(output: &Path) -> PathBuf {
    let mut name = output.to_owned().into_os_string();
    name.push(SUFFIX);
    name.into()
}

/// Report URL for the output `url`.
pub fn url_of(output: &Url) -> Url {
    output.with_key(fit_key(&format!("{}{SUFFIX}", output.key)))
}

/// Output digest from the last job's report.
pub fn known_digest(output: &Path) -> Option<String> {
    read(&path_of(output)).and_then(|report| report.output_digest)
}

fn read(path: &Path) -> Option<Report> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return None;
    }
    serde_json::from_slice(&regular_file::read(path).ok()?).ok()
}

fn taken(path: &dyn std::fmt::Display) -> Error {
    Error::config(format!("`{path}` is not a report of `kivu batch`"))
        .with_hint("choose another output")
}

/// Checks that a report may be written to `path`, and returns metadata for the report that it replaces.
pub fn check(path: &Path) -> Result<Option<Metadata>> {
    match lookup(path)? {
        Some(found) if !found.is_file() || found.len() > 0 && read(path).is_none() => {
            Err(taken(&path.display()))
        }
        found => Ok(found),
    }
}

/// Refuses to replace rows that another sink than `sink` does not have: files for several sinks may have the same name,
/// which is made of the input's.
pub fn check_failed_rows(output: &Path, sink: Option<&str>) -> Result<()> {
    let found = read(&path_of(output));
    let has_rows = |report: &Report| {
        report.status == Status::Finished && !report.progress.errors.is_empty() && output.exists()
    };
    match found.filter(has_rows).and_then(|report| report.sink) {
        Some(other) if sink != Some(other.as_str()) => Err(Error::config(format!(
            "`{}` has the rows that `{other}` does not have",
            output.display()
        ))
        .with_hint("choose another file, move it away, or replace it with `--overwrite`")),
        _ => Ok(()),
    }
}

/// Checks that a report may be written to `url`, and returns the condition for writing it.
pub fn check_object(store: &Arc<dyn Store>, url: &Url) -> Result<Condition> {
    let found = read_object(store, url)?;
    Ok(found.map_or(Condition::IsAbsent, |(_, object)| {
        Condition::IsStill(object.etag)
    }))
}

/// The report at `url`, unless it is empty.
fn read_object(store: &Arc<dyn Store>, url: &Url) -> Result<Option<(Option<Report>, Object)>> {
    match store.head(url)? {
        None => return Ok(None),
        Some(object) if object.size > MAX_BYTES => return Err(taken(url)),
        Some(_) => {}
    }
    let Some((bytes, object)) = store.read(url)? else {
        return Ok(None);
    };
    let report = match bytes.is_empty() {
        true => None,
        false => Some(serde_json::from_slice(&bytes).map_err(|_| taken(url))?),
    };
    Ok(Some((report, object)))
}

/// Refuses to replace the output at `url` if its report says that it is the one for another object than `input`: rules
/// may give several objects the same output.
///
/// # Errors
/// They are temporary, and not reported where the other output's report is: an event that is repeated in vain raises an
/// alarm.
pub fn check_output(store: &Arc<dyn Store>, url: &Url, input: &str) -> Result<()> {
    let is_object = |name: &str| name.starts_with("s3://");
    let found = read_object(store, &url_of(url))?.and_then(|(report, _)| report);
    let is_other = |report: &Report| {
        report.status == Status::Finished && report.input != input && is_object(&report.input)
    };
    let Some(report) = found.filter(|report| is_object(input) && is_other(report)) else {
        return Ok(());
    };
    let found = format!("it is the output for `{}`", report.input);
    let action = format!("cannot replace `{url}`");
    let error = Error::io(action)(io::Error::new(io::ErrorKind::AlreadyExists, found));
    Err(error.with_hint("choose another output, remove it, or replace it with `--overwrite`"))
}

/// Writes the report for an output that is not a stream.
pub fn write(output: &JobOutput, report: &Report, existing: Existing) -> Result<()> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Error::inference_because("the report cannot be written", error))?;
    let text = text + "\n";
    match output {
        _ if output.stream().is_some() => Ok(()),
        JobOutput::Stdout => Ok(()),
        JobOutput::File(path) => write_file(&path_of(path), text.as_bytes()),
        JobOutput::Object(store, output) => {
            let is_new = report.status == Status::Finished || existing.overwrite;
            if !is_new && store.head(output)?.is_some() {
                check_output(store, output, &report.input)?;
            }
            let url = url_of(output);
            for _ in 0..TRIES {
                let condition = check_object(store, &url)?;
                if store.put(&url, text.clone().into(), &condition)?.is_some() {
                    return Ok(());
                }
            }
            Err(taken(&url))
        }
    }
}

fn write_file(path: &Path, text: &[u8]) -> Result<()> {
    let replaced = check(path)?;
    let failed = || Error::cannot("write", path.display());
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed())?;
    let mode = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new()
        .prefix(".kivu-report-")
        .permissions(mode)
        .tempfile_in(folder);
    let mut file = file.map_err(failed())?;
    if let Some(replaced) = replaced {
        file.as_file()
            .set_permissions(replaced.permissions())
            .map_err(failed())?;
    }
    file.write_all(text).map_err(failed())?;
    file.persist(path)
        .map(drop)
        .map_err(|refused| failed()(refused.error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_another_sink_does_not_have_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("failed-a.csv");
        let refused = |errors: &str, sink| {
            let report = format!(
                r#"{{"status": "finished", "input": "a.csv", "output": "failed-a.csv", "sink": "postgres://host/db?table=a",
                "model": "m", "model_digest": "d", "task": "t", "rows": 9, "errors": {errors}, "samples": [], "tokens": 9,
                "truncated": 0, "seconds": 1.5}}"#
            );
            fs::write(path_of(&output), report).unwrap();
            check_failed_rows(&output, sink).map_err(|error| error.to_string())
        };
        let (one, table) = (r#"{"sink": 1}"#, Some("postgres://host/db?table=a"));
        assert_eq!(refused(one, None), Ok(()), "the rows were moved away");
        fs::write(&output, "id,text,error\n").unwrap();
        let error = refused(one, Some("postgres://host/db?table=b")).unwrap_err();
        let error = error.replace(&format!("{}/", folder.path().display()), "");
        insta::assert_snapshot!(error, @"`failed-a.csv` has the rows that `postgres://host/db?table=a` does not have; choose another file, move it away, or replace it with `--overwrite`");
        assert!(refused(one, None).is_err());
        assert_eq!(refused(one, table), Ok(()));
        assert_eq!(refused("{}", None), Ok(()));
    }
}
