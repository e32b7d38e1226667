//! The built-in web page: a chat with the served model, for people who have just started a server and want to see it speak.
//!
//! The files of `page/` are in the binary as they are; nothing builds them. The page asks its own server only, and the
//! content security policy keeps it so: scripts, styles, images and requests of no other origin, no inline script, and no
//! way from text to markup (`require-trusted-types-for`), so that what a model writes stays text. It needs no key: it shows
//! nothing that the API would not.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// What the page may load and do: itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

/// Hexadecimal digits of the content's hash in an entity tag.
const TAG_DIGITS: usize = 32;

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    body: &'static str,
}

macro_rules! asset {
    ($path:literal, $content_type:literal, $file:literal) => {
        Asset {
            path: $path,
            content_type: $content_type,
            body: include_str!(concat!("page/", $file)),
        }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", "text/html; charset=utf-8", "index.html"),
    asset!("/web/style.css", "text/css; charset=utf-8", "style.css"),
    asset!("/web/icon.svg", "image/svg+xml", "icon.svg"),
    asset!(
        "/web/answer.js",
        "text/javascript; charset=utf-8",
        "answer.js"
    ),
    asset!("/web/api.js", "text/javascript; charset=utf-8", "api.js"),
    asset!("/web/app.js", "text/javascript; charset=utf-8", "app.js"),
    asset!(
        "/web/markdown.js",
        "text/javascript; charset=utf-8",
        "markdown.js"
    ),
    asset!(
        "/web/panel.js",
        "text/javascript; charset=utf-8",
        "panel.js"
    ),
    asset!(
        "/web/request.js",
        "text/javascript; charset=utf-8",
        "request.js"
    ),
    asset!("/web/sse.js", "text/javascript; charset=utf-8", "sse.js"),
    asset!(
        "/web/store.js",
        "text/javascript; charset=utf-8",
        "store.js"
    ),
    asset!("/web/view.js", "text/javascript; charset=utf-8", "view.js"),
];

/// The routes of the page: `/` and, below `/web/`, what it is made of.
pub(crate) fn routes<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    ASSETS.iter().fold(Router::new(), |router, asset| {
        let tag: Arc<str> = entity_tag(asset.body).into();
        router.route(
            asset.path,
            get(move |headers: HeaderMap| std::future::ready(answer(asset, &tag, &headers))),
        )
    })
}

/// A strong entity tag: the hash of the content, in quotes.
fn entity_tag(body: &str) -> String {
    let hash = blake3::hash(body.as_bytes()).to_hex();
    format!("\"{}\"", &hash[..TAG_DIGITS])
}

/// The file, or that the client's copy is still right. Browsers ask each time (`no-cache`), so that a new binary's page is
/// never mixed with an old one's.
fn answer(asset: &'static Asset, tag: &str, headers: &HeaderMap) -> Response {
    let mut response = if knows(headers, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        asset.body.into_response()
    };
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    out.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    out.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    out.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    out.insert(
        "cross-origin-opener-policy",
        HeaderValue::from_static("same-origin"),
    );
    if let Ok(tag) = HeaderValue::from_str(tag) {
        out.insert(ETAG, tag);
    }
    response
}

/// Whether `If-None-Match` names the tag. A proxy that compresses weakens tags, and the comparison is the weak one (RFC 9110,
/// 13.1.2).
fn knows(headers: &HeaderMap, tag: &str) -> bool {
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

#[cfg(test)]
mod tests;
