// What a search found as one HTML page that needs no network: the best ways beside each other, what their time and
// memory are, and why the others are not among them.
#pragma once

#include <cstddef>
#include <string>

#include "cost/cluster.h"
#include "plan/search.h"
#include "plan/search_text.h"

namespace stepc::train {

std::string search_page(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster, size_t top);

}  // namespace stepc::train
