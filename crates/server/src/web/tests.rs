//! What the page promises without a browser; with one: `tests/web`.
#![allow(clippy::unwrap_used, reason = "tests")]

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::{ASSETS, POLICY, routes};

async fn ask(method: Method, path: &str, known: Option<&str>) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(tag) = known {
        request = request.header("if-none-match", tag);
    }
    let request = request.body(Body::empty()).unwrap();
    routes::<()>().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn every_file_comes_with_its_type_and_the_policy() {
    for asset in ASSETS {
        let response = ask(Method::GET, asset.path, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{}", asset.path);
        let headers = response.headers();
        assert_eq!(headers["content-type"], asset.content_type);
        assert_eq!(headers["content-security-policy"], POLICY);
        assert_eq!(headers["cache-control"], "no-cache");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(text(response).await, asset.body);
    }
}

#[tokio::test]
async fn a_copy_that_is_still_right_is_not_sent_again() {
    let first = ask(Method::GET, "/", None).await;
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    let style = ask(Method::GET, "/web/style.css", None).await;
    assert_ne!(style.headers()["etag"], tag.as_str());

    for known in [
        tag.clone(),
        format!("W/{tag}"),
        format!("\"old\", {tag}"),
        "*".into(),
    ] {
        let again = ask(Method::GET, "/", Some(&known)).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{known}");
        assert_eq!(again.headers()["etag"], tag.as_str());
        assert_eq!(text(again).await, "");
    }
    for other in ["\"old\"", "", tag.trim_matches('"')] {
        let again = ask(Method::GET, "/", Some(other)).await;
        assert_eq!(again.status(), StatusCode::OK, "{other}");
    }
}

#[tokio::test]
async fn head_has_the_headers_and_no_body() {
    let response = ask(Method::HEAD, "/", None).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().contains_key("etag"));
    assert_eq!(text(response).await, "");
}

/// The texts between `before` and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| rest.split(after).next())
        .collect()
}

#[test]
fn whatever_a_file_names_is_served_and_every_file_is_named() {
    let mut named = vec!["/".to_owned()];
    for asset in ASSETS {
        named.extend(
            between(asset.body, "\"web/", '"')
                .iter()
                .map(|name| format!("/web/{name}")),
        );
        named.extend(
            between(asset.body, "from \"./", '"')
                .iter()
                .map(|name| format!("/web/{name}")),
        );
    }
    named.sort();
    named.dedup();
    let mut served: Vec<_> = ASSETS.iter().map(|asset| asset.path.to_owned()).collect();
    served.sort();
    assert_eq!(named, served);
}

#[test]
fn the_page_asks_nobody_else_and_makes_no_markup_from_text() {
    const FORBIDDEN: &[&str] = &[
        "https://",
        "//cdn",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "style=\"",
        "onclick=",
        "onload=",
        "javascript:",
        "<style",
        "@import",
        "url(",
    ];
    for asset in ASSETS {
        let body = asset
            .body
            .replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in FORBIDDEN.iter().chain(&["http://"]) {
            assert!(!body.contains(word), "{} holds {word}", asset.path);
        }
    }
}
