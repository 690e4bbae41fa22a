//! A route, as the tables in `routes/` describe it.

use std::sync::Arc;

use axum::{http::Method, routing::MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::app::App;
use crate::dialects::Dialect;

const JSON: &str = "application/json";
/// Query parameters per route.
const MAX_QUERY: usize = 4;

/// Routes for the same clients: a tag in the OpenAPI document. `routes/texts.json` describes it.
pub struct Api {
    pub name: &'static str,
    /// The error bodies.
    pub dialect: Dialect,
    /// Paths below this prefix have the API's error bodies even if they have no route.
    pub prefix: Option<&'static str>,
    pub routes: &'static [Route],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMethod {
    Get,
    Post,
}

impl RouteMethod {
    /// The name in the OpenAPI document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
        }
    }

    pub fn is(self, method: &Method) -> bool {
        match self {
            Self::Get => *method == Method::GET,
            Self::Post => *method == Method::POST,
        }
    }
}

/// The work that a route does, which determines its response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    NoModel,
    Model,
    /// A model; the response has TEI's usage headers.
    ModelWithUsage,
}

/// Returns a type's schema, which the generator adds to the components.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A body: media type and schema.
#[derive(Clone, Copy)]
pub struct Content {
    pub media_type: &'static str,
    pub schema: SchemaOf,
}

/// An optional query parameter.
#[derive(Clone, Copy)]
pub struct QueryParameter {
    pub name: &'static str,
    pub schema: SchemaOf,
}

/// A path and method. `routes/texts.json` describes it, with examples.
#[derive(Clone, Copy)]
pub struct Route {
    pub method: RouteMethod,
    /// Relative to the server, with parameters such as `{model}`.
    pub path: &'static str,
    /// The operation name in generated clients and in links to `/docs`.
    pub id: &'static str,
    /// The operation whose texts it has, unless there are own ones.
    pub texts: &'static str,
    pub handler: fn() -> MethodRouter<Arc<App>>,
    /// Whether requests need no credentials.
    pub is_open: bool,
    /// Whether the server's configuration can turn it off.
    pub is_optional: bool,
    pub runs: Runs,
    pub query: [Option<QueryParameter>; MAX_QUERY],
    pub request: Option<Content>,
    pub response: Option<Content>,
    /// Whether the response may also be binary data.
    pub has_binary_response: bool,
}

/// `get!(PATH, ID, HANDLER)`: a route for GET, and HEAD.
macro_rules! get {
    ($path:expr, $id:expr, $handler:expr $(,)?) => {
        Route::new(RouteMethod::Get, $path, $id, || {
            axum::routing::get($handler)
        })
    };
}

/// `post!(PATH, ID, HANDLER)`: a route for POST.
macro_rules! post {
    ($path:expr, $id:expr, $handler:expr $(,)?) => {
        Route::new(RouteMethod::Post, $path, $id, || {
            axum::routing::post($handler)
        })
    };
}

pub(crate) use {get, post};

impl Route {
    /// Use `get!` or `post!`, which give `method` and `handler` together.
    pub const fn new(
        method: RouteMethod,
        path: &'static str,
        id: &'static str,
        handler: fn() -> MethodRouter<Arc<App>>,
    ) -> Self {
        Self {
            method,
            path,
            id,
            texts: id,
            handler,
            is_open: false,
            is_optional: false,
            runs: Runs::NoModel,
            query: [None; MAX_QUERY],
            request: None,
            response: None,
            has_binary_response: false,
        }
    }

    /// The same route at another path.
    pub const fn at(self, path: &'static str, id: &'static str) -> Self {
        Self { path, id, ..self }
    }

    pub const fn open(self) -> Self {
        Self {
            is_open: true,
            ..self
        }
    }

    pub const fn optional(self) -> Self {
        Self {
            is_optional: true,
            ..self
        }
    }

    pub const fn runs(self, runs: Runs) -> Self {
        Self { runs, ..self }
    }

    /// Adds a query parameter.
    pub const fn query<T: JsonSchema>(mut self, name: &'static str) -> Self {
        let mut free = 0;
        while self.query[free].is_some() {
            free += 1;
        }
        let schema = SchemaGenerator::subschema_for::<T>;
        self.query[free] = Some(QueryParameter { name, schema });
        self
    }

    /// A request with a body in JSON.
    pub const fn request<T: JsonSchema>(self) -> Self {
        Self {
            request: Some(Content::new::<T>(JSON)),
            ..self
        }
    }

    /// A response with a body in JSON.
    pub const fn response<T: JsonSchema>(self) -> Self {
        self.response_in::<T>(JSON)
    }

    pub const fn response_in<T: JsonSchema>(self, media_type: &'static str) -> Self {
        Self {
            response: Some(Content::new::<T>(media_type)),
            ..self
        }
    }

    pub const fn or_binary(self) -> Self {
        Self {
            has_binary_response: true,
            ..self
        }
    }

    /// Path parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(parameter)
    }

    /// Whether a request's path belongs to this route.
    pub fn matches(&self, path: &str) -> bool {
        let is_segment = |(segment, found): (&str, &str)| match parameter(segment) {
            Some(_) => !found.is_empty(),
            None => segment == found,
        };
        self.path.split('/').count() == path.split('/').count()
            && self.path.split('/').zip(path.split('/')).all(is_segment)
    }
}

/// The name, if a segment is a parameter.
fn parameter(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

impl Content {
    const fn new<T: JsonSchema>(media_type: &'static str) -> Self {
        Self {
            media_type,
            schema: SchemaGenerator::subschema_for::<T>,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn a_parameter_is_a_segment_that_is_not_empty() {
        const ROUTE: Route = get!(
            "/models/{model}/versions/{version}",
            "versions",
            async || StatusCode::OK
        );
        let matching = [
            "/models/a/versions/1",
            "/models/%ff/versions/a.b",
            "/models/{model}/versions/{version}",
        ];
        let others = [
            "/models/a/versions",
            "/models//versions/1",
            "/models/a/versions/1/",
            "/models/a/b/versions/1",
            "/",
        ];
        assert!(matching.iter().all(|path| ROUTE.matches(path)));
        assert!(!others.iter().any(|path| ROUTE.matches(path)));
        assert_eq!(ROUTE.parameters().collect::<Vec<_>>(), ["model", "version"]);
    }
}
