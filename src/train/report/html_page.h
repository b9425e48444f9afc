// The head of the pages that a person opens: one file each, which needs no network, in the colours that the person
// likes.
#pragma once

#include <string>
#include <string_view>

namespace stepc::train {

// Up to the body's beginning, what is in it follows; "</body></html>" ends the page. `style`: of the page alone.
std::string page_head(std::string_view title, std::string_view style = {});

}  // namespace stepc::train
