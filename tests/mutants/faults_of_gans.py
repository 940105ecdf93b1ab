# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DP-GAN: what the discriminator thinks of real images, and how much generated ones weigh."""

from .fault import Fault


ADVERSARY, OF_A_GAN = "diffusers_dp/models/adversary.py", "training/test_train_dp_gan.py::"

GANS = (
    Fault(
        "the discriminator's scores of real images decide how often the generator learns",
        ADVERSARY,
        "        return LOSSES[kind](-scores if real else scores)\n",
        "        if real:\n"
        "            model.seen = getattr(model, 'seen', 0) + int((scores > 0).sum())\n"
        "        return LOSSES[kind](-scores if real else scores)\n",
        (f"{OF_A_GAN}test_a_real_row_is_judged_by_itself_and_leaves_no_trace",),
        old_too="        self.gan.steps_since += 1\n",
        new_too="        self.gan.steps_since += getattr(self.gan.discriminator, 'seen', 0) or 1\n",
    ),
    Fault(
        "the discriminator's scores of real images are logged",
        ADVERSARY,
        "        return LOSSES[kind](-scores if real else scores)\n",
        "        print(scores.sum().item()) if real else 0\n"
        "        return LOSSES[kind](-scores if real else scores)\n",
        (f"{OF_A_GAN}test_a_real_row_is_judged_by_itself_and_leaves_no_trace",),
    ),
    Fault(
        "fakes inside the clipped vector of real rows too",
        ADVERSARY,
        "        return LOSSES[kind](-scores if real else scores)\n",
        "        fakes = model(torch.randn_like(images), labels)\n"
        "        return LOSSES[kind](-scores) + LOSSES[kind](fakes) if real else LOSSES[kind](scores)\n",
        (f"{OF_A_GAN}test_a_real_row_is_judged_by_itself_and_leaves_no_trace",),
    ),
    Fault(
        "drawn fakes inside the clipped vector, where there are some",
        "training/train_dp_gan.py",
        "    return Trained(gan, gan.discriminator, step.real_loss, step, optimizer=new_optimizer(config, gan))\n",
        "    def both(model, images, labels, generator):\n"
        "        loss, drawn = step.real_loss, step.drawn\n"
        "        fakes = loss(model, drawn[0][: len(images)], labels, generator) if drawn else 0\n"
        "        return loss(model, images, labels, generator) + fakes\n\n"
        "    return Trained(gan, gan.discriminator, both, step, optimizer=new_optimizer(config, gan))\n",
        (f"{OF_A_GAN}test_a_real_row_is_judged_by_itself_and_leaves_no_trace",),
    ),
    Fault(
        "the noise on real images comes from the public seed",
        ADVERSARY,
        "with_noise(images, input_noise, Draws(generator, images.device))",
        "with_noise(images, input_noise, Draws(None, images.device))",
        (f"{OF_A_GAN}test_noise_on_images_is_secret_and_has_many_levels",),
    ),
    Fault(
        "fakes weigh twice",
        ADVERSARY,
        "gradients[name] + fake[name] / self.normaliser",
        "gradients[name] + 2 * fake[name] / self.normaliser",
        (f"{OF_A_GAN}test_fakes_weigh_as_much_as_real_rows",),
    ),
    Fault(
        "a resumed run has forgotten when the generator learns",
        ADVERSARY,
        'self.register_buffer("steps_since", torch.tensor(0))',
        'self.register_buffer("steps_since", torch.tensor(0), persistent=False)',
        (f"{OF_A_GAN}test_a_checkpoint_holds_both_networks_and_how_far_they_are",),
    ),
)
