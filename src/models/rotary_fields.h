// The rotary positions of a config.json: rope_theta with rope_scaling, as transformers 4 writes them, or the one object
// rope_parameters of transformers 5.
#pragma once

#include "models/config_fields.h"
#include "models/decoder_config.h"

namespace stepc::models {

void rotary_fields(ConfigFields& fields, Rotary& rotary);

}  // namespace stepc::models
