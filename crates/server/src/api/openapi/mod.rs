//! `/openapi.json`: the description of all endpoints, made from the types that read and print them.
//!
//! Paths are a table here rather than attributes on handlers, since what most endpoints share (keys, errors, loading) would otherwise
//! be said twenty times. A test holds the table against the router.

pub(crate) mod shapes;
mod table;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::Type;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, ObjectBuilder, OpenApiBuilder, Paths, Ref, RefOr, Required,
    ResponseBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};

use self::table::{Endpoint, Errors};
use crate::state::AppState;

/// Names of the ways to give a key.
const BEARER: &str = "bearer";
const HEADER: &str = "x-api-key";

const DESCRIPTION: &str = "\
An inference server for GLM models. Speaks OpenAI's chat completions, completions and responses (without storage), Anthropic's \
messages, and what vLLM and llama.cpp have beside them. Fields that are not described are ignored.";

/// Schemas by name, and where the schema itself is.
type Schemas = Vec<(String, RefOr<Schema>)>;

/// Serves the document.
pub(crate) async fn serve(State(state): State<AppState>) -> Response {
    let document = document(&state.config().model_names).to_string();
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], document).into_response()
}

/// The document, for a server whose model has these names.
pub(crate) fn document(model_names: &[String]) -> Json {
    let mut schemas = Schemas::new();
    let mut paths = Paths::new();
    for endpoint in table::endpoints(&mut schemas) {
        let (path, method) = (endpoint.path, endpoint.method.clone());
        paths.add_path_operation(path, vec![method], operation(endpoint));
    }
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(
            BEARER,
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .description(Some("One of the server's keys, if it has any."))
                    .build(),
            ),
        )
        .security_scheme(
            HEADER,
            SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(
                HEADER,
                "One of the server's keys, if it has any.",
            ))),
        );
    let info = InfoBuilder::new()
        .title("glim")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION));
    let document = OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .build();
    // Only a map with keys that are no strings could fail.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    // Tools know 3.1; nothing of a later version is used.
    document["openapi"] = json!("3.1.0");
    if let Some(schemas) = document.pointer_mut("/components/schemas") {
        name_models(schemas, model_names);
        allow_overlap(schemas);
    }
    document
}

/// Forms that are told apart by what else they have: an answer of the richer form is also one of the poorer.
const OVERLAPPING: &[&str] = &["Tokenized"];

/// `anyOf` for forms of which an answer may have more than one; untagged enums come as `oneOf`.
fn allow_overlap(schemas: &mut Json) {
    for name in OVERLAPPING {
        let schema = schemas.get_mut(*name).and_then(Json::as_object_mut);
        if let Some(schema) = schema
            && let Some(forms) = schema.remove("oneOf")
        {
            schema.insert("anyOf".to_owned(), forms);
        }
    }
}

/// Says which names a request may call the model by.
fn name_models(schemas: &mut Json, names: &[String]) {
    for name in table::REQUESTS {
        let schema = schemas.get_mut(*name);
        if let Some(model) = schema.and_then(|schema| property(schema, "model")) {
            let mut allowed: Vec<Json> = names.iter().map(|name| json!(name)).collect();
            allowed.push(Json::Null);
            model["enum"] = Json::Array(allowed);
        }
    }
}

/// A property of an object, or of one of the objects that it is made of.
fn property<'a>(schema: &'a mut Json, name: &str) -> Option<&'a mut Json> {
    let own = schema.get("properties");
    if own.is_some_and(|properties| properties.get(name).is_some()) {
        return schema.get_mut("properties")?.get_mut(name);
    }
    let parts = schema.get_mut("allOf")?.as_array_mut()?;
    parts.iter_mut().find_map(|part| property(part, name))
}

/// Refers to a type's schema, and sees to it that it is there.
fn refer<T: ToSchema>(schemas: &mut Schemas) -> RefOr<Schema> {
    let name = T::name();
    T::schemas(schemas);
    schemas.push((name.clone().into_owned(), T::schema()));
    RefOr::Ref(Ref::from_schema_name(name))
}

fn operation(endpoint: Endpoint) -> OperationBuilder {
    let mut operation = OperationBuilder::new()
        .tag(endpoint.tag)
        .summary(Some(endpoint.summary))
        .operation_id(Some(endpoint.id));
    if let Some(description) = endpoint.description {
        operation = operation.description(Some(description));
    }
    if let Some((name, description)) = endpoint.parameter {
        let text = ObjectBuilder::new().schema_type(Type::String);
        operation = operation.parameter(
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(Some(description))
                .schema(Some(text)),
        );
    }
    if let Some(schema) = endpoint.request {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let body = RequestBodyBuilder::new()
            .content("application/json", content)
            .required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    for (status, description, contents) in endpoint.answers {
        let mut response = ResponseBuilder::new().description(description);
        for (kind, schema) in contents {
            response = response.content(kind, ContentBuilder::new().schema(Some(schema)).build());
        }
        operation = operation.response(status.to_string(), response);
    }
    let Errors { schema, cases } = endpoint.errors;
    for (status, description) in cases {
        let content = ContentBuilder::new().schema(Some(schema.clone())).build();
        let response = ResponseBuilder::new()
            .description(*description)
            .content("application/json", content);
        operation = operation.response(status.to_string(), response);
    }
    match endpoint.needs_key {
        // No key is needed if the server has none.
        true => operation.securities(Some([
            SecurityRequirement::new::<_, [String; 0], _>(BEARER, []),
            SecurityRequirement::new::<_, [String; 0], _>(HEADER, []),
            SecurityRequirement::default(),
        ])),
        false => operation,
    }
}

/// A schema that is a text.
fn text() -> RefOr<Schema> {
    String::schema()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_two_schemas_share_a_name() {
        let mut schemas = Schemas::new();
        table::endpoints(&mut schemas);
        let mut by_name = BTreeMap::new();
        for (name, schema) in schemas {
            let schema = serde_json::to_value(schema).unwrap();
            if let Some(other) = by_name.insert(name.clone(), schema.clone()) {
                assert_eq!(other, schema, "two schemas are called {name}");
            }
        }
        assert!(by_name.len() > 60);
    }

    #[test]
    fn no_two_operations_share_an_id() {
        let mut ids: Vec<&str> = table::endpoints(&mut Schemas::new())
            .into_iter()
            .map(|endpoint| endpoint.id)
            .collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }
}
