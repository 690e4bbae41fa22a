//! Errors of requests.

use std::{error::Error as StdError, fmt, io};

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use kivu::error::Error;

/// Error codes after which the same request may succeed. S3 sends some in a response with status 200, which begins before a
/// copy or a multipart upload is complete.
const TEMPORARY_CODES: [&str; 5] = [
    "SlowDown",
    "RequestTimeout",
    "ConditionalRequestConflict",
    "InternalError",
    "ServiceUnavailable",
];

/// A failed request.
#[derive(Debug)]
pub struct RequestError {
    error: io::Error,
    /// Whether the same request may succeed later.
    is_temporary: bool,
    /// Whether a request condition was false.
    pub is_refused: bool,
}

impl RequestError {
    pub fn temporary(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            error: io::Error::other(source),
            is_temporary: true,
            is_refused: false,
        }
    }

    pub fn permanent(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            is_temporary: false,
            ..Self::temporary(source)
        }
    }

    /// Error for an object that was replaced.
    pub fn refused() -> Self {
        Self {
            is_refused: true,
            ..Self::permanent("the object was replaced")
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    /// Whether the object, the bucket or the upload does not exist.
    pub fn is_not_found(&self) -> bool {
        self.error.kind() == io::ErrorKind::NotFound
    }

    pub fn during(self, action: String) -> Error {
        Error::Io {
            action: action.into(),
            source: self.error,
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// `None` for an object or an upload that does not exist.
pub fn found<T>(
    result: Result<T, RequestError>,
    action: impl FnOnce() -> String,
) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.during(action())),
    }
}

impl<E> From<SdkError<E>> for RequestError
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    fn from(error: SdkError<E>) -> Self {
        let status = error
            .raw_response()
            .map_or(0, |response| response.status().as_u16());
        let code = error.code().unwrap_or_default().to_owned();
        let kind = match (status, code.as_str()) {
            (404, _) | (_, "NoSuchKey" | "NoSuchBucket" | "NoSuchUpload") => {
                io::ErrorKind::NotFound
            }
            (401 | 403, _) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        let has_temporary_code = TEMPORARY_CODES.contains(&code.as_str());
        let is_temporary = match &error {
            SdkError::ConstructionFailure(_) => false,
            SdkError::TimeoutError(_)
            | SdkError::DispatchFailure(_)
            | SdkError::ResponseError(_) => true,
            _ => has_temporary_code || status >= 500 || status == 429,
        };
        // The SDK reports missing credentials as a connection failure, which would be temporary.
        let lacks_credentials = status == 0
            && causes(&error)
                .iter()
                .any(|cause| cause.contains("credentials"));
        let (message, is_temporary) = if lacks_credentials {
            let hint = "no credentials were found; set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or a profile";
            (hint.to_owned(), false)
        } else {
            (message(&error, status, &code), is_temporary)
        };
        Self {
            error: io::Error::new(kind, message),
            is_temporary,
            is_refused: status == 412 || status == 304 || code == "PreconditionFailed",
        }
    }
}

/// The server's message, or the cause for a missing response.
fn message<E>(error: &SdkError<E>, status: u16, code: &str) -> String
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match (status, code, error.message().unwrap_or_default()) {
        (0, ..) => {
            // The outer causes say only that something failed.
            let mut causes = causes(error);
            let mut inner = causes.split_off(causes.len().saturating_sub(2));
            inner.dedup();
            if inner.is_empty() {
                error.to_string()
            } else {
                inner.join(": ")
            }
        }
        (_, "RequestTimeTooSkewed", _) => format!("{code}: this machine's clock is wrong; set it"),
        (_, "", "") => format!("the server responded with {status}"),
        (_, "", message) => message.to_owned(),
        (_, code, "") => code.to_owned(),
        (_, code, message) => format!("{code}: {message}"),
    }
}

fn causes(error: &dyn StdError) -> Vec<String> {
    std::iter::successors(error.source(), |cause| (*cause).source())
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::{
        config::http::HttpResponse, error::ErrorMetadata,
        operation::complete_multipart_upload::CompleteMultipartUploadError, primitives::SdkBody,
    };

    use super::*;

    fn error(status: u16, code: &str) -> RequestError {
        let metadata = ErrorMetadata::builder().code(code).build();
        let response = HttpResponse::new(status.try_into().unwrap(), SdkBody::empty());
        SdkError::service_error(CompleteMultipartUploadError::generic(metadata), response).into()
    }

    #[test]
    fn errors_in_successful_responses_are_like_others() {
        for code in ["InternalError", "SlowDown", "ServiceUnavailable"] {
            assert!(error(200, code).is_temporary, "{code}");
        }
        for (status, code) in [
            (200, "EntityTooSmall"),
            (400, "EntityTooSmall"),
            (200, "AccessDenied"),
        ] {
            assert!(!error(status, code).is_temporary, "{status} {code}");
        }
        for status in [200, 412] {
            let error = error(status, "PreconditionFailed");
            assert!(error.is_refused && !error.is_temporary, "{status}");
        }
        assert!(error(200, "NoSuchUpload").is_not_found());
    }
}
